/* What launches of graphs that allocate take from the budget.
 *
 * The driver backs the nodes of all graphs of a device from one reserve of its own: it grows at a launch that
 * needs more than is free of it, is used again by the next, and shrinks when it is trimmed. So one charge per
 * device stands for it, of at least what is reserved and what launches under way may add. What a graph leaves
 * allocated to the program is not used again until it is freed: see begin() for when a launch may count on
 * what is reserved. Thread safe; a child of fork starts empty.
 */
#ifndef VGPU_GRAPH_LAUNCHES_H
#define VGPU_GRAPH_LAUNCHES_H

#include "graphs.h"

/* One launch or upload. Nobody else looks inside. */
struct graph_launch {
    bool follow; /* nothing else is set where it is false, */
    CUgraph into; /* but this: what it is captured into, with its key */
    bool runs; /* it is launched, not uploaded */
    bool leaves; /* memory to the program */
    uint64_t key, stream;
    struct graph_needs needs;
    struct graph_use before, now;
    uint64_t turns[MAX_DEVICES], trims[MAX_DEVICES];
    bool alone[MAX_DEVICES]; /* no other was under way */
    bool again[MAX_DEVICES]; /* it is to use what it used before */
};

/* Called by whoever is about to launch or (runs: false) upload `exec`: charges what its nodes need beyond
 * what is charged already. CUDA_ERROR_OUT_OF_MEMORY when that does not fit: the driver is then not asked.
 * Into a capture nothing runs, and nothing is charged: its graph is, as if it had the nodes. One relaxed load
 * when the process has no graph that allocates. */
CUresult graph_memory_before_launch(struct graph_launch *launch, CUgraphExec exec, CUstream stream,
                                    bool per_thread, bool runs, const char *function);

/* Called after the driver has answered the launch, whatever it said: the charge becomes what is reserved, or,
 * where the driver has captured it, that graph has its nodes. If it was launched, what is reserved also says
 * what it needs. */
void graph_memory_after_launch(struct graph_launch *launch, CUresult result);

/* Its handle may be given out anew while its work is still under way. */
void graph_memory_stream_ends(CUstream stream);

/* Around what gives back what is idle. */
void graph_memory_trims(bool begins);

/* Make the device's charge what the driver has reserved for graphs. */
void graph_memory_true_up(CUdevice device);

/* The same by place. */
void graph_memory_true_up_place(int place);

/* Charged for graphs, whether they run or not; and give back what no running graph uses. */
uint64_t graph_memory_idle_bytes(int place);
void graph_memory_trim(int place);

/* A graph allocates on this device. */
void graph_memory_known(int place, CUdevice device);

void graph_memory_forget(void);

#endif
