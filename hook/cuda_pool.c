/* Stream-ordered memory and its pools. */
#include "wrap.h"

EXPORT CUresult cuMemAllocAsync(CUdeviceptr *address, size_t bytes, CUstream stream)
{
    ALLOCATE(cuMemAllocAsync, BLOCK_ADDRESS, bytes, *address, address, bytes, stream);
}

EXPORT CUresult cuMemAllocAsync_ptsz(CUdeviceptr *address, size_t bytes, CUstream stream)
{
    ALLOCATE(cuMemAllocAsync_ptsz, BLOCK_ADDRESS, bytes, *address, address, bytes, stream);
}

EXPORT CUresult cuMemAllocFromPoolAsync(CUdeviceptr *address, size_t bytes, CUmemoryPool pool,
                                        CUstream stream)
{
    ALLOCATE(cuMemAllocFromPoolAsync, BLOCK_ADDRESS, bytes, *address, address, bytes, pool, stream);
}

EXPORT CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *address, size_t bytes, CUmemoryPool pool,
                                             CUstream stream)
{
    ALLOCATE(cuMemAllocFromPoolAsync_ptsz, BLOCK_ADDRESS, bytes, *address, address, bytes, pool, stream);
}

EXPORT CUresult cuMemFreeAsync(CUdeviceptr address, CUstream stream)
{
    FREE(cuMemFreeAsync, BLOCK_ADDRESS, address, address, stream);
}

EXPORT CUresult cuMemFreeAsync_ptsz(CUdeviceptr address, CUstream stream)
{
    FREE(cuMemFreeAsync_ptsz, BLOCK_ADDRESS, address, address, stream);
}

EXPORT CUresult cuMemPoolDestroy(CUmemoryPool pool)
{
    PASS(cuMemPoolDestroy, pool);
}

EXPORT CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t bytes)
{
    PASS(cuMemPoolTrimTo, pool, bytes);
}

EXPORT CUresult cuMemPoolImportPointer(CUdeviceptr *address, CUmemoryPool pool, CUmemPoolPtrExportData *data)
{
    PASS(cuMemPoolImportPointer, address, pool, data);
}
