/* Stream-ordered memory and its pools. */
#include "launch_gate.h"
#include "loose.h"
#include "pool_accounts.h"
#include "pools.h"
#include "replaceable.h"
#include "wrap.h"

/* From the pool, or else (not `of_pool`) from the current one of the stream's device. */
static CUresult allocate(bool of_pool, bool per_thread, const char *function, CUdeviceptr *address,
                         size_t bytes, CUmemoryPool pool, CUstream stream)
{
    const struct real_cuda *real = real_cuda();
    if (!real)
        return CUDA_ERROR_NOT_INITIALIZED;
    __typeof__(real->cuMemAllocFromPoolAsync) from =
        per_thread ? real->cuMemAllocFromPoolAsync_ptsz : real->cuMemAllocFromPoolAsync;
    __typeof__(real->cuMemAllocAsync) of_current =
        per_thread ? real->cuMemAllocAsync_ptsz : real->cuMemAllocAsync;
    struct pooled pooled;
    if (of_pool ? !from : !of_current)
        return CUDA_ERROR_NOT_INITIALIZED;
    CUresult result = pooled_begin(&pooled, bytes, pool, stream, per_thread, function);
    if (result != CUDA_SUCCESS)
        return result;
    if (!of_pool && pooled.stays && from) {
        of_pool = true;
        pool = pooled.handle;
    }
    depth_enter();
    result = of_pool ? from(address, bytes, pool, stream) : of_current(address, bytes, stream);
    depth_leave();
    return pooled_end(&pooled, result, address);
}

EXPORT CUresult cuMemAllocAsync(CUdeviceptr *address, size_t bytes, CUstream stream)
{
    REPLACEABLE_ENTRY;
    return allocate(false, false, __func__, address, bytes, NULL, stream);
}

EXPORT CUresult cuMemAllocAsync_ptsz(CUdeviceptr *address, size_t bytes, CUstream stream)
{
    return allocate(false, true, __func__, address, bytes, NULL, stream);
}

EXPORT CUresult cuMemAllocFromPoolAsync(CUdeviceptr *address, size_t bytes, CUmemoryPool pool,
                                        CUstream stream)
{
    REPLACEABLE_ENTRY;
    return allocate(true, false, __func__, address, bytes, pool, stream);
}

EXPORT CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *address, size_t bytes, CUmemoryPool pool,
                                             CUstream stream)
{
    return allocate(true, true, __func__, address, bytes, pool, stream);
}

/* What the stream is being captured into, asked only while a capture is open, or where graphs allocate. */
static CUgraph freed_into(CUstream stream, bool per_thread)
{
    return launch_gate_captures() || graphs_allocate() ? graph_captured(stream, per_thread) : NULL;
}

static CUresult free_in(__typeof__(&cuMemFreeAsync) function, CUdeviceptr address, CUstream stream,
                        bool per_thread)
{
    struct freeing freeing;
    if (!function)
        return CUDA_ERROR_NOT_INITIALIZED;
    if (depth_inside())
        return function(address, stream);
    freeing_begin(&freeing, stream_number(stream, per_thread), freed_into(stream, per_thread), address);
    depth_enter();
    CUresult result = function(address, stream);
    depth_leave();
    return freeing_end(&freeing, result);
}

EXPORT CUresult cuMemFreeAsync(CUdeviceptr address, CUstream stream)
{
    REPLACEABLE_ENTRY;
    const struct real_cuda *real = real_cuda();
    return free_in(real ? real->cuMemFreeAsync : NULL, address, stream, false);
}

EXPORT CUresult cuMemFreeAsync_ptsz(CUdeviceptr address, CUstream stream)
{
    const struct real_cuda *real = real_cuda();
    return free_in(real ? real->cuMemFreeAsync_ptsz : NULL, address, stream, true);
}

EXPORT CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *properties)
{
    const struct real_cuda *real = real_cuda();
    if (!real || !real->cuMemPoolCreate)
        return CUDA_ERROR_NOT_INITIALIZED;
    CUresult result = CALL(cuMemPoolCreate, pool, properties);
    if (result == CUDA_SUCCESS && pool && properties)
        pool_created(*pool, properties);
    return result;
}

EXPORT CUresult cuMemPoolDestroy(CUmemoryPool pool)
{
    const struct real_cuda *real = real_cuda();
    if (!real || !real->cuMemPoolDestroy)
        return CUDA_ERROR_NOT_INITIALIZED;
    struct pool *account = depth_inside() ? NULL : pool_ending(pool);
    if (account && loose_load(&account->ended))
        return CUDA_ERROR_INVALID_VALUE; /* to the program it is destroyed already */
    if (pool_lingers(account))
        return CUDA_SUCCESS;
    CUresult result = CALL(cuMemPoolDestroy, pool);
    return pool_ended(account, result);
}

EXPORT CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t bytes)
{
    const struct real_cuda *real = real_cuda();
    if (!real || !real->cuMemPoolTrimTo)
        return CUDA_ERROR_NOT_INITIALIZED;
    CUresult result = CALL(cuMemPoolTrimTo, pool, bytes);
    if (result == CUDA_SUCCESS && !depth_inside())
        pool_true_up(pool);
    return result;
}

EXPORT CUresult cuMemPoolImportFromShareableHandle(CUmemoryPool *pool, void *handle,
                                                   CUmemAllocationHandleType type, unsigned long long flags)
{
    const struct real_cuda *real = real_cuda();
    if (!real || !real->cuMemPoolImportFromShareableHandle)
        return CUDA_ERROR_NOT_INITIALIZED;
    CUresult result = CALL(cuMemPoolImportFromShareableHandle, pool, handle, type, flags);
    if (result == CUDA_SUCCESS && pool)
        pool_imported(*pool);
    return result;
}

/* The driver then gives back what its pools do not need: other processes of the container may need it. */
#define SYNCHRONIZE(symbol, arguments)                                                                       \
    const struct real_cuda *real = real_cuda();                                                              \
    if (!real || !real->symbol)                                                                              \
        return CUDA_ERROR_NOT_INITIALIZED;                                                                   \
    CUresult result = real->symbol arguments;                                                                \
    if (!depth_inside())                                                                                     \
        pools_true_up(EVERY_PLACE);                                                                          \
    return result

EXPORT CUresult cuStreamSynchronize(CUstream stream)
{
    SYNCHRONIZE(cuStreamSynchronize, (stream));
}

EXPORT CUresult cuStreamSynchronize_ptsz(CUstream stream)
{
    SYNCHRONIZE(cuStreamSynchronize_ptsz, (stream));
}

EXPORT CUresult cuEventSynchronize(CUevent event)
{
    SYNCHRONIZE(cuEventSynchronize, (event));
}

EXPORT CUresult cuCtxSynchronize(void)
{
    SYNCHRONIZE(cuCtxSynchronize, ());
}

EXPORT CUresult cuCtxSynchronize_v2(CUcontext context)
{
    SYNCHRONIZE(cuCtxSynchronize_v2, (context));
}

/* The memory is its exporter's: freeing it here finds no block and is passed on. */
EXPORT CUresult cuMemPoolImportPointer(CUdeviceptr *address, CUmemoryPool pool, CUmemPoolPtrExportData *data)
{
    PASS(cuMemPoolImportPointer, address, pool, data);
}
