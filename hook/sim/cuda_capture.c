/* Simulated CUDA driver: the functions that begin, end and ask about stream captures. */
#include "captures.h"
#include "graph_memory.h"

static CUresult begin(const char *function, CUstream stream, CUstreamCaptureMode mode, bool per_thread,
                      struct capture_destination into)
{
    struct stream_call call;
    CUresult result = stream_begin(&call, function, stream, per_thread);
    if (result == CUDA_SUCCESS
        && (mode < 0 || mode > CAPTURE_MODE_RELAXED || (into.count && (!into.graph || !into.nodes))))
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS && call.stream->flags & STREAM_LEGACY)
        result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (result == CUDA_SUCCESS)
        result = capture_begin(call.stream, mode, into);
    return cuda_end(&call.call, result);
}

#define ANEW (struct capture_destination){0}

EXPORT CUresult cuStreamBeginCapture(CUstream stream)
{
    return begin(__func__, stream, CAPTURE_MODE_GLOBAL, false, ANEW);
}

EXPORT CUresult cuStreamBeginCapture_ptsz(CUstream stream)
{
    return begin(__func__, stream, CAPTURE_MODE_GLOBAL, true, ANEW);
}

EXPORT CUresult cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode)
{
    return begin(__func__, stream, mode, false, ANEW);
}

EXPORT CUresult cuStreamBeginCapture_v2_ptsz(CUstream stream, CUstreamCaptureMode mode)
{
    return begin(__func__, stream, mode, true, ANEW);
}

static CUresult begin_in_graph(const char *function, CUstream stream, bool per_thread,
                               struct capture_destination into, CUstreamCaptureMode mode)
{
    struct cuda_call call;
    CUresult result = cuda_end(&call, cuda_begin(&call, function));
    if (result == CUDA_SUCCESS && !into.graph)
        result = CUDA_ERROR_INVALID_VALUE;
    return result == CUDA_SUCCESS ? begin(function, stream, mode, per_thread, into) : result;
}

EXPORT CUresult cuStreamBeginCaptureToGraph(CUstream stream, CUgraph graph, const CUgraphNode *nodes,
                                            const CUgraphEdgeData *edges, size_t count,
                                            CUstreamCaptureMode mode)
{
    (void)edges;
    return begin_in_graph(__func__, stream, false, (struct capture_destination){graph, nodes, count, false},
                          mode);
}

EXPORT CUresult cuStreamBeginCaptureToGraph_ptsz(CUstream stream, CUgraph graph, const CUgraphNode *nodes,
                                                 const CUgraphEdgeData *edges, size_t count,
                                                 CUstreamCaptureMode mode)
{
    (void)edges;
    return begin_in_graph(__func__, stream, true, (struct capture_destination){graph, nodes, count, false},
                          mode);
}

/* The nodes are captured anew; the callback is not called. */
EXPORT CUresult cuStreamBeginRecaptureToGraph(CUstream stream, CUstreamCaptureMode mode, CUgraph graph,
                                              CUgraphRecaptureCallback callback, void *data)
{
    (void)callback, (void)data;
    return begin_in_graph(__func__, stream, false,
                          (struct capture_destination){.graph = graph, .again = true}, mode);
}

EXPORT CUresult cuStreamBeginRecaptureToGraph_ptsz(CUstream stream, CUstreamCaptureMode mode, CUgraph graph,
                                                   CUgraphRecaptureCallback callback, void *data)
{
    (void)callback, (void)data;
    return begin_in_graph(__func__, stream, true, (struct capture_destination){.graph = graph, .again = true},
                          mode);
}

static CUresult end(const char *function, CUstream stream, CUgraph *graph, bool per_thread)
{
    struct stream_call call;
    CUresult result = stream_begin(&call, function, stream, per_thread);
    CUgraph finished = NULL;
    if (result == CUDA_SUCCESS)
        result = capture_end(call.stream, &finished);
    if (graph)
        *graph = finished;
    return cuda_end(&call.call, result);
}

EXPORT CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph)
{
    return end(__func__, stream, graph, false);
}

EXPORT CUresult cuStreamEndCapture_ptsz(CUstream stream, CUgraph *graph)
{
    return end(__func__, stream, graph, true);
}

EXPORT CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode)
{
    struct cuda_call call;
    CUresult result = cuda_begin(&call, __func__);
    if (result == CUDA_SUCCESS && (!mode || *mode < 0 || *mode > CAPTURE_MODE_RELAXED))
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        *mode = capture_thread_mode(*mode);
    return cuda_end(&call, result);
}

/* --- asking --------------------------------------------------------------------------------------------- */

static CUresult ask(const char *function, CUstream stream, bool per_thread, struct capture_info *info)
{
    struct stream_call call;
    CUresult result = stream_begin(&call, function, stream, per_thread);
    if (result == CUDA_SUCCESS)
        result = capture_ask(call.stream, info);
    return cuda_end(&call.call, result);
}

static CUresult is_capturing(const char *function, CUstream stream, bool per_thread,
                             CUstreamCaptureStatus *status)
{
    struct capture_info info;
    CUresult result = ask(function, stream, per_thread, &info);
    if (result == CUDA_SUCCESS && !status)
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        *status = info.status;
    return result;
}

EXPORT CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus *status)
{
    return is_capturing(__func__, stream, false, status);
}

EXPORT CUresult cuStreamIsCapturing_ptsz(CUstream stream, CUstreamCaptureStatus *status)
{
    return is_capturing(__func__, stream, true, status);
}

static CUresult capture_info(const char *function, CUstream stream, bool per_thread,
                             CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph,
                             const CUgraphNode **dependencies, size_t *count)
{
    struct capture_info info;
    CUresult result = ask(function, stream, per_thread, &info);
    if (result == CUDA_SUCCESS && !status)
        result = CUDA_ERROR_INVALID_VALUE;
    if (result != CUDA_SUCCESS)
        return result;
    *status = info.status;
    if (id && info.status == CAPTURE_ACTIVE)
        *id = info.id;
    if (graph && info.status == CAPTURE_ACTIVE)
        *graph = info.graph;
    if (dependencies && info.status == CAPTURE_ACTIVE)
        *dependencies = info.tips;
    if (count && info.status == CAPTURE_ACTIVE)
        *count = info.tip_count;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuStreamGetCaptureInfo_v2(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id,
                                          CUgraph *graph, const CUgraphNode **dependencies, size_t *count)
{
    return capture_info(__func__, stream, false, status, id, graph, dependencies, count);
}

EXPORT CUresult cuStreamGetCaptureInfo_v2_ptsz(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id,
                                               CUgraph *graph, const CUgraphNode **dependencies,
                                               size_t *count)
{
    return capture_info(__func__, stream, true, status, id, graph, dependencies, count);
}

/* --- for memory ----------------------------------------------------------------------------------------- */

/* As in a call that was begun already, for its own stream. */
static CUresult with_stream(struct stream_call *call, CUstream stream, bool per_thread, bool *capturing)
{
    CUresult result = stream_begin(call, "", stream, per_thread);
    return result == CUDA_SUCCESS ? capture_work(call->stream, capturing) : result;
}

CUresult sim_capture_active(CUstream stream, bool per_thread, bool *active)
{
    struct stream_call call;
    CUresult result = with_stream(&call, stream, per_thread, active);
    return cuda_end(&call.call, result);
}

CUresult sim_capture_allocation(CUstream stream, bool per_thread, CUdevice device, uint64_t bytes,
                                CUdeviceptr *address)
{
    struct stream_call call;
    bool capturing;
    struct node_content content = {.kind = GRAPH_NODE_ALLOCATION};
    struct CUgraphNode_st *node;
    CUresult result = with_stream(&call, stream, per_thread, &capturing);
    if (result == CUDA_SUCCESS)
        result = graph_allocation_content(device < 0 ? call.stream->device : device, bytes, &content);
    if (result == CUDA_SUCCESS)
        result = capture_node(call.stream, content, &node);
    if (result == CUDA_SUCCESS)
        *address = node->content.allocation->address;
    return cuda_end(&call.call, result);
}

CUresult sim_capture_free(CUstream stream, bool per_thread, CUdeviceptr address)
{
    struct stream_call call;
    bool capturing;
    CUresult result = with_stream(&call, stream, per_thread, &capturing);
    if (result == CUDA_SUCCESS)
        result = capture_node(call.stream, (struct node_content){.kind = GRAPH_NODE_FREE, .address = address},
                              NULL);
    return cuda_end(&call.call, result);
}
