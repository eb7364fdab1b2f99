/* Memory that graphs allocate: which graphs do is followed from the making of their nodes to their launch. */
#include "graph_launches.h"
#include "launch_gate.h"
#include "reclaim.h"
#include "wrap.h"

/* Call the driver; on success, take note. */
#define NOTE(symbol, note, ...)                                                                              \
    const struct real_cuda *real = real_cuda();                                                              \
    if (!real || !real->symbol)                                                                              \
        return CUDA_ERROR_NOT_INITIALIZED;                                                                   \
    CUresult result = CALL(symbol, __VA_ARGS__);                                                             \
    if (result == CUDA_SUCCESS)                                                                              \
        note;                                                                                                \
    return result

/* --- nodes ---------------------------------------------------------------------------------------------- */

static void note_allocation(CUgraph graph, const CUDA_MEM_ALLOC_NODE_PARAMS *allocation)
{
    if (allocation)
        graph_allocates(graph, device_at(&allocation->poolProps.location), allocation->bytesize,
                        allocation->dptr, false);
}

static void note_node(CUgraph graph, const CUgraphNodeParams *node)
{
    if (node && node->type == GRAPH_NODE_ALLOCATION)
        note_allocation(graph, &node->of.alloc);
    else if (node && node->type == GRAPH_NODE_FREE)
        graph_frees(graph, node->of.free);
    else if (node && node->type == GRAPH_NODE_CHILD_GRAPH)
        graph_contains(graph, node->of.child);
}

EXPORT CUresult cuGraphAddMemAllocNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
                                       size_t count, CUDA_MEM_ALLOC_NODE_PARAMS *allocation)
{
    NOTE(cuGraphAddMemAllocNode, note_allocation(graph, allocation), node, graph, dependencies, count,
         allocation);
}

EXPORT CUresult cuGraphAddMemFreeNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
                                      size_t count, CUdeviceptr address)
{
    NOTE(cuGraphAddMemFreeNode, graph_frees(graph, address), node, graph, dependencies, count, address);
}

EXPORT CUresult cuGraphAddNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
                               size_t count, CUgraphNodeParams *parameters)
{
    NOTE(cuGraphAddNode, note_node(graph, parameters), node, graph, dependencies, count, parameters);
}

EXPORT CUresult cuGraphAddNode_v2(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
                                  const CUgraphEdgeData *edges, size_t count, CUgraphNodeParams *parameters)
{
    NOTE(cuGraphAddNode_v2, note_node(graph, parameters), node, graph, dependencies, edges, count,
         parameters);
}

EXPORT CUresult cuGraphAddNode_v3(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
                                  const CUgraphEdgeData *edges, size_t count, CUgraphNodeParams *parameters)
{
    NOTE(cuGraphAddNode_v3, note_node(graph, parameters), node, graph, dependencies, edges, count,
         parameters);
}

EXPORT CUresult cuGraphAddChildGraphNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
                                         size_t count, CUgraph child)
{
    NOTE(cuGraphAddChildGraphNode, graph_contains(graph, child), node, graph, dependencies, count, child);
}

/* --- graphs --------------------------------------------------------------------------------------------- */

EXPORT CUresult cuGraphCreate(CUgraph *graph, unsigned flags)
{
    NOTE(cuGraphCreate, graph_made(*graph), graph, flags);
}

static void is_copy(CUgraph copy, CUgraph graph)
{
    graph_made(copy);
    graph_contains(copy, graph);
}

EXPORT CUresult cuGraphClone(CUgraph *copy, CUgraph graph)
{
    NOTE(cuGraphClone, is_copy(*copy, graph), copy, graph);
}

/* The shape of a wrapper that destroys one; `ending` and `ended` take what is known of it out, and put it
 * back. */
#define DESTROY(symbol, ending, ended, handle)                                                               \
    const struct real_cuda *real = real_cuda();                                                              \
    if (!real || !real->symbol)                                                                              \
        return CUDA_ERROR_NOT_INITIALIZED;                                                                   \
    struct nodes *nodes = depth_inside() ? NULL : ending(handle);                                            \
    return ended(nodes, real->symbol(handle))

EXPORT CUresult cuGraphDestroy(CUgraph graph)
{
    DESTROY(cuGraphDestroy, graph_ending, graph_ended, graph);
}

/* Ended, whether or not there is a graph of it: so is one that was invalidated, or not recaptured whole,
 * unless the stream had only joined it, and is in it still. Any other answer is about the question, and the
 * capture goes on. */
static bool is_over(CUresult result, CUstream stream, bool per_thread)
{
    return result == CUDA_SUCCESS || result == CUDA_ERROR_STREAM_CAPTURE_UNJOINED
        || ((result == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED || result == CUDA_ERROR_GRAPH_RECAPTURE_FAILURE)
            && !graph_captured(stream, per_thread));
}

static CUresult end_capture(__typeof__(&cuStreamEndCapture) function, CUstream stream, CUgraph *graph,
                            bool per_thread)
{
    if (!function)
        return CUDA_ERROR_NOT_INITIALIZED;
    bool follow = graphs_allocate() && charging();
    CUgraph captured = follow ? graph_captured(stream, per_thread) : NULL;
    depth_enter();
    CUresult result = function(stream, graph);
    depth_leave();
    if (result == CUDA_SUCCESS && graph)
        graph_ended_capture(captured, *graph);
    if (is_over(result, stream, per_thread))
        launch_gate_capture(false);
    return result;
}

EXPORT CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph)
{
    const struct real_cuda *real = real_cuda();
    return end_capture(real ? real->cuStreamEndCapture : NULL, stream, graph, false);
}

EXPORT CUresult cuStreamEndCapture_ptsz(CUstream stream, CUgraph *graph)
{
    const struct real_cuda *real = real_cuda();
    return end_capture(real ? real->cuStreamEndCapture_ptsz : NULL, stream, graph, true);
}

/* --- executable graphs ---------------------------------------------------------------------------------- */

/* The executable graph is a new one, maybe where another was, or does something else from now on. */
static void is_another(CUgraphExec exec, CUgraph graph)
{
    graph_instantiated(exec, graph);
    launch_gate_forget(graph_kind(exec));
}

EXPORT CUresult cuGraphInstantiate(CUgraphExec *exec, CUgraph graph, CUgraphNode *node, char *log,
                                   size_t bytes)
{
    NOTE(cuGraphInstantiate, is_another(*exec, graph), exec, graph, node, log, bytes);
}

EXPORT CUresult cuGraphInstantiate_v2(CUgraphExec *exec, CUgraph graph, CUgraphNode *node, char *log,
                                      size_t bytes)
{
    NOTE(cuGraphInstantiate_v2, is_another(*exec, graph), exec, graph, node, log, bytes);
}

EXPORT CUresult cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, unsigned long long flags)
{
    NOTE(cuGraphInstantiateWithFlags, is_another(*exec, graph), exec, graph, flags);
}

static CUresult destroy_exec(CUgraphExec exec)
{
    DESTROY(cuGraphExecDestroy, graph_exec_ending, graph_exec_ended, exec);
}

EXPORT CUresult cuGraphExecDestroy(CUgraphExec exec)
{
    return destroy_exec(exec);
}

EXPORT CUresult cuGraphExecUpdate(CUgraphExec exec, CUgraph graph, CUgraphNode *node,
                                  CUgraphExecUpdateResult *why)
{
    NOTE(cuGraphExecUpdate, is_another(exec, graph), exec, graph, node, why);
}

EXPORT CUresult cuGraphExecUpdate_v2(CUgraphExec exec, CUgraph graph, CUgraphExecUpdateResultInfo *info)
{
    NOTE(cuGraphExecUpdate_v2, is_another(exec, graph), exec, graph, info);
}

typedef CUresult (*upload_function)(CUgraphExec, CUstream);

/* An upload may already take the memory that the launch will need, or not. */
static CUresult upload(upload_function function, CUgraphExec exec, CUstream stream, bool per_thread,
                       const char *name)
{
    struct graph_launch memory;
    if (!function)
        return CUDA_ERROR_NOT_INITIALIZED;
    CUresult result = graph_memory_before_launch(&memory, exec, stream, per_thread, false, name);
    if (result != CUDA_SUCCESS)
        return result;
    depth_enter();
    result = function(exec, stream);
    depth_leave();
    graph_memory_after_launch(&memory, result);
    return result;
}

EXPORT CUresult cuGraphUpload(CUgraphExec exec, CUstream stream)
{
    const struct real_cuda *real = real_cuda();
    return upload(real ? real->cuGraphUpload : NULL, exec, stream, false, "cuGraphUpload");
}

EXPORT CUresult cuGraphUpload_ptsz(CUgraphExec exec, CUstream stream)
{
    const struct real_cuda *real = real_cuda();
    return upload(real ? real->cuGraphUpload_ptsz : NULL, exec, stream, true, "cuGraphUpload");
}

/* One that is to be uploaded at once is uploaded here, where what that takes is asked for first. */
static CUresult instantiate(__typeof__(&cuGraphInstantiateWithParams) function, upload_function uploading,
                            CUgraphExec *exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *parameters,
                            bool per_thread, const char *name)
{
    CUgraphExec made;
    if (!function)
        return CUDA_ERROR_NOT_INITIALIZED;
    bool uploads = exec && parameters && parameters->flags & GRAPH_INSTANTIATE_UPLOAD && uploading
        && graphs_allocate() && charging();
    CUDA_GRAPH_INSTANTIATE_PARAMS own = uploads ? *parameters : (CUDA_GRAPH_INSTANTIATE_PARAMS){0};
    own.flags &= ~(cuuint64_t)GRAPH_INSTANTIATE_UPLOAD;
    depth_enter();
    CUresult result = function(uploads ? &made : exec, graph, uploads ? &own : parameters);
    depth_leave();
    if (uploads) {
        parameters->hErrNode_out = own.hErrNode_out;
        parameters->result_out = own.result_out;
    }
    if (result != CUDA_SUCCESS)
        return result;
    is_another(uploads ? made : *exec, graph);
    if (!uploads)
        return result;
    result = upload(uploading, made, own.hUploadStream, per_thread, name);
    if (result == CUDA_SUCCESS) {
        *exec = made;
        return result;
    }
    parameters->result_out = GRAPH_INSTANTIATE_ERROR;
    (void)destroy_exec(made);
    return result;
}

EXPORT CUresult cuGraphInstantiateWithParams(CUgraphExec *exec, CUgraph graph,
                                             CUDA_GRAPH_INSTANTIATE_PARAMS *parameters)
{
    const struct real_cuda *real = real_cuda();
    return instantiate(real ? real->cuGraphInstantiateWithParams : NULL, real ? real->cuGraphUpload : NULL,
                       exec, graph, parameters, false, __func__);
}

EXPORT CUresult cuGraphInstantiateWithParams_ptsz(CUgraphExec *exec, CUgraph graph,
                                                  CUDA_GRAPH_INSTANTIATE_PARAMS *parameters)
{
    const struct real_cuda *real = real_cuda();
    return instantiate(real ? real->cuGraphInstantiateWithParams_ptsz : NULL,
                       real ? real->cuGraphUpload_ptsz : NULL, exec, graph, parameters, true, __func__);
}

EXPORT CUresult cuDeviceGraphMemTrim(CUdevice device)
{
    const struct real_cuda *real = real_cuda();
    if (!real || !real->cuDeviceGraphMemTrim)
        return CUDA_ERROR_NOT_INITIALIZED;
    graph_memory_trims(true);
    CUresult result = CALL(cuDeviceGraphMemTrim, device);
    graph_memory_trims(false);
    graph_memory_true_up(device);
    return result;
}
