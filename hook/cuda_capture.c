/* Captures of streams into graphs: what is launched into one does not run yet, so it is not charged. */
#include "charge.h"
#include "graphs.h"
#include "launch_gate.h"
#include "wrap.h"

/* The capture makes a graph of its own. */
static void makes_graph(CUstream stream, bool per_thread)
{
    if (graphs_allocate() && charging())
        graph_made(graph_captured(stream, per_thread));
}

#define BEGIN(symbol, made, ...)                                                                             \
    const struct real_cuda *real = real_cuda();                                                              \
    if (!real || !real->symbol)                                                                              \
        return CUDA_ERROR_NOT_INITIALIZED;                                                                   \
    launch_gate_capture(true); /* before: other threads launch meanwhile */                                  \
    CUresult result = CALL(symbol, __VA_ARGS__);                                                             \
    if (result != CUDA_SUCCESS)                                                                              \
        launch_gate_capture(false);                                                                          \
    else                                                                                                     \
        made;                                                                                                \
    return result

EXPORT CUresult cuStreamBeginCapture(CUstream stream)
{
    BEGIN(cuStreamBeginCapture, makes_graph(stream, false), stream);
}

EXPORT CUresult cuStreamBeginCapture_ptsz(CUstream stream)
{
    BEGIN(cuStreamBeginCapture_ptsz, makes_graph(stream, true), stream);
}

EXPORT CUresult cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode)
{
    BEGIN(cuStreamBeginCapture_v2, makes_graph(stream, false), stream, mode);
}

EXPORT CUresult cuStreamBeginCapture_v2_ptsz(CUstream stream, CUstreamCaptureMode mode)
{
    BEGIN(cuStreamBeginCapture_v2_ptsz, makes_graph(stream, true), stream, mode);
}

EXPORT CUresult cuStreamBeginCaptureToGraph(CUstream stream, CUgraph graph, const CUgraphNode *dependencies,
                                            const CUgraphEdgeData *edges, size_t count,
                                            CUstreamCaptureMode mode)
{
    BEGIN(cuStreamBeginCaptureToGraph, graph_captured_into(graph, false), stream, graph, dependencies, edges,
          count, mode);
}

EXPORT CUresult cuStreamBeginRecaptureToGraph(CUstream stream, CUstreamCaptureMode mode, CUgraph graph,
                                              CUgraphRecaptureCallback callback, void *data)
{
    BEGIN(cuStreamBeginRecaptureToGraph, graph_captured_into(graph, true), stream, mode, graph, callback,
          data);
}

EXPORT CUresult cuStreamBeginRecaptureToGraph_ptsz(CUstream stream, CUstreamCaptureMode mode, CUgraph graph,
                                                   CUgraphRecaptureCallback callback, void *data)
{
    BEGIN(cuStreamBeginRecaptureToGraph_ptsz, graph_captured_into(graph, true), stream, mode, graph, callback,
          data);
}

EXPORT CUresult cuStreamBeginCaptureToGraph_ptsz(CUstream stream, CUgraph graph,
                                                 const CUgraphNode *dependencies,
                                                 const CUgraphEdgeData *edges, size_t count,
                                                 CUstreamCaptureMode mode)
{
    BEGIN(cuStreamBeginCaptureToGraph_ptsz, graph_captured_into(graph, false), stream, graph, dependencies,
          edges, count, mode);
}
