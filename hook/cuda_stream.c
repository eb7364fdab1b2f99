/* The ends of streams: a handle may be given out anew, for a stream of another device. */
#include "graph_launches.h"
#include "streams.h"
#include "wrap.h"

EXPORT CUresult cuStreamDestroy(CUstream stream)
{
    stream_ends(stream);
    graph_memory_stream_ends(stream);
    PASS(cuStreamDestroy, stream);
}

EXPORT CUresult cuStreamDestroy_v2(CUstream stream)
{
    stream_ends(stream);
    graph_memory_stream_ends(stream);
    PASS(cuStreamDestroy_v2, stream);
}
