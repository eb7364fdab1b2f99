/* Memory by address: allocated and freed at once. A block that this hook did not charge is freed as it is. */
#include "limits.h"
#include "pools.h"
#include "replaceable.h"
#include "wrap.h"

enum { GRANULE = 512, ATTACH_GLOBAL = 1 /* CU_MEM_ATTACH_GLOBAL */ };

/* What the driver takes at least for a request; a granule in which several lie is charged to each of them. */
static uint64_t in_granules(uint64_t bytes)
{
    return bytes > UINT64_MAX - GRANULE ? UINT64_MAX : (bytes + GRANULE - 1) / GRANULE * GRANULE;
}

/* Rows are padded by a rule of the driver's own; this is what all known ones take at least. */
static uint64_t pitched_bytes(uint64_t width, uint64_t height)
{
    uint64_t row = in_granules(width);
    return height && row > UINT64_MAX / height ? UINT64_MAX : row * height;
}

/* The GPU is full though the container is not: where its share may exceed the GPU, what does not fit lives in
 * the host's memory. */
SELDOM static bool spill(const struct real_cuda *real, struct block *block, CUresult result,
                         CUdeviceptr *address, uint64_t bytes)
{
    if (result != CUDA_ERROR_OUT_OF_MEMORY || !block || !limits_oversubscribe(block_device(block))
        || !real->cuMemAllocManaged)
        return false;
    wrap_managed(block);
    return CALL(cuMemAllocManaged, address, bytes, ATTACH_GLOBAL) == CUDA_SUCCESS;
}

EXPORT CUresult cuMemAlloc_v2(CUdeviceptr *address, size_t bytes)
{
    REPLACEABLE_ENTRY;
    const struct real_cuda *real = real_cuda();
    struct block *block;
    if (!real || !real->cuMemAlloc_v2)
        return CUDA_ERROR_NOT_INITIALIZED;
    CUresult result = wrap_reserve(&block, BLOCK_ADDRESS, in_granules(bytes), "cuMemAlloc_v2");
    if (result != CUDA_SUCCESS)
        return result;
    result = CALL(cuMemAlloc_v2, address, bytes);
    if (result != CUDA_SUCCESS && spill(real, block, result, address, bytes))
        result = CUDA_SUCCESS;
    return wrap_settle(block, result, result == CUDA_SUCCESS && block ? *address : 0);
}

SELDOM EXPORT CUresult cuMemAlloc(CUdeviceptr_v1 *address, unsigned bytes)
{
    REPLACEABLE_ENTRY;
    ALLOCATE(cuMemAlloc, BLOCK_ADDRESS, in_granules(bytes), *address, address, bytes);
}

SELDOM EXPORT CUresult cuMemAllocManaged(CUdeviceptr *address, size_t bytes, unsigned flags)
{
    REPLACEABLE_ENTRY;
    const struct real_cuda *real = real_cuda();
    struct block *block;
    if (!real || !real->cuMemAllocManaged)
        return CUDA_ERROR_NOT_INITIALIZED;
    CUresult result = wrap_reserve(&block, BLOCK_ADDRESS, in_granules(bytes), "cuMemAllocManaged");
    if (result != CUDA_SUCCESS)
        return result;
    wrap_managed(block);
    result = CALL(cuMemAllocManaged, address, bytes, flags);
    return wrap_settle(block, result, result == CUDA_SUCCESS && block ? *address : 0);
}

SELDOM EXPORT CUresult cuMemAllocPitch_v2(CUdeviceptr *address, size_t *pitch, size_t width, size_t height,
                                          unsigned element)
{
    REPLACEABLE_ENTRY;
    const struct real_cuda *real = real_cuda();
    struct block *block;
    uint64_t bytes = pitched_bytes(width, height);
    if (!real || !real->cuMemAllocPitch_v2)
        return CUDA_ERROR_NOT_INITIALIZED;
    CUresult result = wrap_reserve(&block, BLOCK_ADDRESS, bytes, "cuMemAllocPitch_v2");
    if (result != CUDA_SUCCESS)
        return result;
    result = CALL(cuMemAllocPitch_v2, address, pitch, width, height, element);
    if (result != CUDA_SUCCESS && pitch && spill(real, block, result, address, bytes)) {
        *pitch = in_granules(width);
        result = CUDA_SUCCESS;
    }
    return wrap_settle(block, result, result == CUDA_SUCCESS && block ? *address : 0);
}

SELDOM EXPORT CUresult cuMemAllocPitch(CUdeviceptr_v1 *address, unsigned *pitch, unsigned width,
                                       unsigned height, unsigned element)
{
    REPLACEABLE_ENTRY;
    ALLOCATE(cuMemAllocPitch, BLOCK_ADDRESS, pitched_bytes(width, height), *address, address, pitch, width,
             height, element);
}

EXPORT CUresult cuMemFree_v2(CUdeviceptr address)
{
    REPLACEABLE_ENTRY;
    FREE_ADDRESS(cuMemFree_v2, NO_STREAM_NUMBER, NULL, address, address);
}

SELDOM EXPORT CUresult cuMemFree(CUdeviceptr_v1 address)
{
    REPLACEABLE_ENTRY;
    FREE_ADDRESS(cuMemFree, NO_STREAM_NUMBER, NULL, address, address);
}
