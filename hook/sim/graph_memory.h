/* Simulated CUDA driver: memory behind the allocation nodes of graphs, and stream-ordered memory under
 * capture. Thread safe.
 *
 * As in the driver, an allocation node has its address from the start and its memory only while it lives:
 * from the launch that runs the node to the launch of the free node, or to cuMemFree. All graphs of a device
 * draw on one reserve, which grows in steps and goes back only by cuDeviceGraphMemTrim.
 */
#ifndef VGPU_SIM_GRAPH_MEMORY_H
#define VGPU_SIM_GRAPH_MEMORY_H

#include "../cuda_abi.h"

#include <stdbool.h>
#include <stdint.h>

/* The address of a new allocation node. */
CUresult sim_graph_memory_node(CUdevice device, uint64_t bytes, CUdeviceptr *address);

/* No graph has the node any more. Its memory, if it has any, stays until somebody frees it. */
void sim_graph_memory_forget(CUdeviceptr address);

/* The node runs. CUDA_ERROR_OUT_OF_MEMORY when the GPU has no more; CUDA_ERROR_INVALID_VALUE when it is
 * allocated already. */
CUresult sim_graph_memory_allocate(CUdeviceptr address);

/* Whether the node has memory. */
bool sim_graph_memory_live(CUdeviceptr address);

/* The memory is free for the next node. False: not the address of a node that has memory. */
bool sim_graph_memory_free(CUdeviceptr address);

/* --- what the stream side (streams, capture) provides to the memory side --- */

/* CUDA_SUCCESS and whether the stream is being captured; or why it cannot be used. */
CUresult sim_capture_active(CUstream stream, bool per_thread, bool *active);

/* A stream-ordered call becomes a node of the graph being captured. `device`: of the pool; -1: the stream's.
 */
CUresult sim_capture_allocation(CUstream stream, bool per_thread, CUdevice device, uint64_t bytes,
                                CUdeviceptr *address);
CUresult sim_capture_free(CUstream stream, bool per_thread, CUdeviceptr address);

/* The device that the stream belongs to. */
CUresult sim_stream_device(CUstream stream, CUdevice *device);

/* Its row in execution.h; 0: it never had work. */
uint32_t sim_stream_row(CUstream stream, bool per_thread);

#endif
