/* Captures of streams into graphs: what is launched into one does not run yet, so it is not charged. */
#include "launch_gate.h"
#include "wrap.h"

#define BEGIN(symbol, ...)                                                                                   \
    const struct real_cuda *real = real_cuda();                                                              \
    if (!real || !real->symbol)                                                                              \
        return CUDA_ERROR_NOT_INITIALIZED;                                                                   \
    launch_gate_capture(true); /* before: other threads launch meanwhile */                                  \
    CUresult result = CALL(symbol, __VA_ARGS__);                                                             \
    if (result != CUDA_SUCCESS)                                                                              \
        launch_gate_capture(false);                                                                          \
    return result

EXPORT CUresult cuStreamBeginCapture(CUstream stream)
{
    BEGIN(cuStreamBeginCapture, stream);
}

EXPORT CUresult cuStreamBeginCapture_ptsz(CUstream stream)
{
    BEGIN(cuStreamBeginCapture_ptsz, stream);
}

EXPORT CUresult cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode)
{
    BEGIN(cuStreamBeginCapture_v2, stream, mode);
}

EXPORT CUresult cuStreamBeginCapture_v2_ptsz(CUstream stream, CUstreamCaptureMode mode)
{
    BEGIN(cuStreamBeginCapture_v2_ptsz, stream, mode);
}

EXPORT CUresult cuStreamBeginCaptureToGraph(CUstream stream, CUgraph graph, const CUgraphNode *dependencies,
                                            const CUgraphEdgeData *edges, size_t count,
                                            CUstreamCaptureMode mode)
{
    BEGIN(cuStreamBeginCaptureToGraph, stream, graph, dependencies, edges, count, mode);
}

EXPORT CUresult cuStreamBeginRecaptureToGraph(CUstream stream, CUstreamCaptureMode mode, CUgraph graph,
                                              CUgraphRecaptureCallback callback, void *data)
{
    BEGIN(cuStreamBeginRecaptureToGraph, stream, mode, graph, callback, data);
}

EXPORT CUresult cuStreamBeginRecaptureToGraph_ptsz(CUstream stream, CUstreamCaptureMode mode, CUgraph graph,
                                                   CUgraphRecaptureCallback callback, void *data)
{
    BEGIN(cuStreamBeginRecaptureToGraph_ptsz, stream, mode, graph, callback, data);
}

EXPORT CUresult cuStreamBeginCaptureToGraph_ptsz(CUstream stream, CUgraph graph,
                                                 const CUgraphNode *dependencies,
                                                 const CUgraphEdgeData *edges, size_t count,
                                                 CUstreamCaptureMode mode)
{
    BEGIN(cuStreamBeginCaptureToGraph_ptsz, stream, graph, dependencies, edges, count, mode);
}
