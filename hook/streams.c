#include "streams.h"
#include "contexts.h"
#include "devices.h"
#include "loose.h"
#include "pools.h"
#include "real.h"

enum { KNOWN_BITS = 8, PLACE_BITS = 8, LAST_SPECIAL = 2 };

/* A stream's handle and its place + 1, 0 for none: one word, so that it is never half of another's. */
static _Atomic uint64_t known[1 << KNOWN_BITS];

static _Atomic uint64_t *word_of(CUstream stream)
{
    return &known[(uintptr_t)stream * UINT64_C(0x9e3779b97f4a7c15) >> (64 - KNOWN_BITS)];
}

/* NULL for streams that have none of their own, and where the driver does not tell. */
static CUcontext context_of(CUstream stream)
{
    const struct real_cuda *real = real_cuda();
    CUcontext context = NULL;
    bool told = (uintptr_t)stream > LAST_SPECIAL && real->cuStreamGetCtx
        && real->cuStreamGetCtx(stream, &context) == CUDA_SUCCESS;
    return told ? context : NULL;
}

static CUcontext enter(CUcontext context)
{
    const struct real_cuda *real = real_cuda();
    context = context ? context_whole(context) : NULL;
    return context && real->cuCtxPushCurrent_v2 && real->cuCtxPopCurrent_v2
            && real->cuCtxPushCurrent_v2(context) == CUDA_SUCCESS
        ? context
        : NULL;
}

CUcontext stream_enter(CUstream stream)
{
    const struct real_cuda *real = real_cuda();
    CUcontext context = context_of(stream);
    if ((uintptr_t)stream <= LAST_SPECIAL && real->cuCtxGetCurrent)
        real->cuCtxGetCurrent(&context);
    return enter(context);
}

void stream_leave(CUcontext entered)
{
    if (entered)
        real_cuda()->cuCtxPopCurrent_v2(&entered);
}

int place_of_stream(CUstream stream)
{
    int place;
    uint64_t handle = (uintptr_t)stream;
    uint64_t seen = atomic_load_explicit(word_of(stream), memory_order_relaxed);
    if (seen && seen >> PLACE_BITS == handle)
        return (int)(seen & ((1 << PLACE_BITS) - 1)) - 1;
    CUcontext entered = enter(context_of(stream));
    place_of_context(&place);
    stream_leave(entered);
    if (entered && place >= 0 && handle >> (64 - PLACE_BITS) == 0)
        atomic_store_explicit(word_of(stream), handle << PLACE_BITS | (uint64_t)(place + 1),
                              memory_order_relaxed);
    return place;
}

void stream_ends(CUstream stream)
{
    if (stream)
        loose_store(word_of(stream), 0);
    pools_stream_ends(stream ? (uintptr_t)stream : SEVERAL_STREAMS);
    for (size_t i = 0; !stream && i < sizeof known / sizeof *known; i++)
        loose_store(&known[i], 0);
}
