/* Memory that graphs allocate while they run: which allocation nodes a graph has, and what their launch takes
 * from the budget.
 *
 * The driver backs the nodes of all graphs of a device from one reserve of its own: it grows at a launch that
 * needs more than any before, is used again by the next, and shrinks when it is trimmed. So one charge per
 * device stands for it. What a graph leaves allocated to the program is not used again: see require_besides.
 * Thread safe; a child of fork starts empty.
 */
#ifndef VGPU_GRAPHS_H
#define VGPU_GRAPHS_H

#include "cuda_abi.h"

#include <stdbool.h>
#include <stdint.h>

/* The graph that the stream's calls become nodes of; NULL: it is not being captured. Asks the driver, which
 * is allowed at any time. */
CUgraph graph_captured(CUstream stream, bool per_thread);

/* An allocation node of `bytes` on `device` became part of the graph. */
void graph_allocates(CUgraph graph, CUdevice device, uint64_t bytes);

/* `part` became part of `whole` as a child graph, or `whole` is a copy of `part`. */
void graph_contains(CUgraph whole, CUgraph part);

void graph_forget(CUgraph graph);

/* What was captured as `captured` is the program's graph now (NULL: the capture failed). */
void graph_ended_capture(CUgraph captured, CUgraph graph);

/* Whether this process ever had a graph that allocates: otherwise nothing here needs to be called. */
bool graphs_allocate(void);

/* `exec` was made from the graph, or became like it. */
void graph_instantiated(CUgraphExec exec, CUgraph graph);

void graph_exec_forget(CUgraphExec exec);

/* Called by whoever is about to launch or upload `exec`: charges what its nodes need beyond what is charged
 * already. CUDA_ERROR_OUT_OF_MEMORY when that does not fit: the driver is then not asked. One relaxed load
 * when the process has no graph that allocates. */
CUresult graph_memory_before_launch(CUgraphExec exec, const char *function);

/* Called after the driver has answered the launch, whatever it said: the charge becomes what is reserved. If
 * it was launched, that also says what it needs. */
void graph_memory_after_launch(CUgraphExec exec, bool launched);

/* The program has freed what a graph had left to it: other graphs may use it from now on, and leave it. */
void graph_memory_left(void);

/* Make the device's charge what the driver has reserved for graphs. */
void graph_memory_true_up(CUdevice device);

/* The same by place. */
void graph_memory_true_up_place(int place);

/* Charged for graphs, whether they run or not; and give back what no running graph uses. */
uint64_t graph_memory_idle_bytes(int place);
void graph_memory_trim(int place);

#endif
