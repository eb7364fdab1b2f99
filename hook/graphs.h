/* Graphs that allocate memory while they run: which nodes a graph has, followed from their making to the
 * executable graph. Thread safe; a child of fork starts empty.
 */
#ifndef VGPU_GRAPHS_H
#define VGPU_GRAPHS_H

#include "cuda_abi.h"
#include "settings.h"

#include <stdbool.h>
#include <stdint.h>

/* The graph that the stream's calls become nodes of; NULL: it is not being captured. SPOILED_GRAPH, which is
 * nobody's: that capture was invalidated, and the driver refuses every call until it ends. Asks the driver,
 * which is allowed at any time. */
CUgraph graph_captured(CUstream stream, bool per_thread);
#define SPOILED_GRAPH ((CUgraph)1)

/* An allocation node of `bytes` on `device` became part of the graph, by a capture or not; and one that
 * frees, what the graph itself allocates or another has left. */
void graph_allocates(CUgraph graph, CUdevice device, uint64_t bytes, CUdeviceptr address, bool captured);
void graph_frees(CUgraph graph, CUdeviceptr address);

/* What is captured from now on is added to a graph of the program's, or (`again`) takes the place of its
 * nodes one by one. Of those that allocate or free the driver takes none but the same, with its address; one
 * whose capture fails has as many as before at most. */
void graph_captured_into(CUgraph graph, bool again);

/* The driver has made a graph: its handle may be one that a failed capture had. */
void graph_made(CUgraph graph);

/* `part` became part of `whole` as a child graph, or `whole` is a copy of `part`. */
void graph_contains(CUgraph whole, CUgraph part);

/* Before and after the driver destroys one: the handle may be given out anew as soon as it has it back. What
 * it refuses to destroy is kept in mind. */
struct nodes;
struct nodes *graph_ending(CUgraph graph);
CUresult graph_ended(struct nodes *nodes, CUresult result);
struct nodes *graph_exec_ending(CUgraphExec exec);
CUresult graph_exec_ended(struct nodes *nodes, CUresult result);

/* What was captured as `captured` (NULL: none) is the program's graph now. Not called of a capture that
 * failed: it may go on, or have been one into a graph of the program's, which can be launched all the same.
 */
void graph_ended_capture(CUgraph captured, CUgraph graph);

/* Whether this process ever had a graph that allocates: otherwise nothing here needs to be called. */
bool graphs_allocate(void);

/* `exec` was made from the graph, or became like it. */
void graph_instantiated(CUgraphExec exec, CUgraph graph);

/* What the nodes of a graph take and free. */
struct graph_needs {
    uint64_t bytes[MAX_DEVICES]; /* by place */
    bool unsure; /* it may leave more to the program than is noted here */
};

/* How its last launch found and left what is reserved for graphs; counts are of graph_launches.c. */
struct graph_use {
    bool launched;
    uint64_t reserved[MAX_DEVICES], taken[MAX_DEVICES];
};

struct graph_launch;

/* The driver has taken it into the capture that makes `graph`. */
void graph_takes_in(CUgraph graph, const struct graph_launch *launch);

/* What `exec` needs and did; false when its nodes take nothing and free nothing. */
bool graph_needs(struct graph_launch *launch, CUgraphExec exec);

/* Whether all that it leaves to the program on the device is there from its last launch, which its next one
 * frees: else the driver refuses to launch it. And how much of it is. `before` becomes what that launch
 * found, which another thread may just have made. */
bool graph_keeps(struct graph_launch *launch, int place, uint64_t *bytes);

/* What it leaves is there, and what it frees is gone: said before the driver is asked, so that who frees it
 * in another thread has the last word. Nobody knows what one has freed that the driver refused, unless it did
 * so before it touched anything. */
enum graph_stage { GRAPH_LAUNCHING, GRAPH_LAUNCHED, GRAPH_REFUSED, GRAPH_UNTOUCHED };
void graph_leaves(const struct graph_launch *launch, enum graph_stage stage);

/* Around a call in which the program frees what a graph may have left to it; or, where it is captured
 * (`into`), only after it. */
void graph_freeing(CUdeviceptr address);
void graph_freed(CUgraph into, CUdeviceptr address, bool freed);

/* It was launched. */
void graph_used(const struct graph_launch *launch, int place);

/* Of two amounts that may be absurd; not more than an exabyte. */
uint64_t graph_bytes_sum(uint64_t one, uint64_t other);

#endif
