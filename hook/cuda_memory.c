/* Memory by address: allocated and freed at once. A block that this hook did not charge is freed as it is. */
#include "pools.h"
#include "wrap.h"

enum { PITCH_ALIGNMENT = 512 };

EXPORT CUresult cuMemAlloc_v2(CUdeviceptr *address, size_t bytes)
{
    ALLOCATE(cuMemAlloc_v2, BLOCK_ADDRESS, bytes, *address, address, bytes);
}

EXPORT CUresult cuMemAlloc(CUdeviceptr_v1 *address, unsigned bytes)
{
    ALLOCATE(cuMemAlloc, BLOCK_ADDRESS, bytes, *address, address, bytes);
}

EXPORT CUresult cuMemAllocManaged(CUdeviceptr *address, size_t bytes, unsigned flags)
{
    ALLOCATE(cuMemAllocManaged, BLOCK_ADDRESS, bytes, *address, address, bytes, flags);
}

/* Rows are padded by a rule of the driver's own; this is what all known ones take at least. */
static uint64_t pitched_bytes(uint64_t width, uint64_t height)
{
    if (width > UINT64_MAX - PITCH_ALIGNMENT)
        return UINT64_MAX;
    uint64_t row = (width + PITCH_ALIGNMENT - 1) / PITCH_ALIGNMENT * PITCH_ALIGNMENT;
    return height && row > UINT64_MAX / height ? UINT64_MAX : row * height;
}

EXPORT CUresult cuMemAllocPitch_v2(CUdeviceptr *address, size_t *pitch, size_t width, size_t height,
                                   unsigned element)
{
    ALLOCATE(cuMemAllocPitch_v2, BLOCK_ADDRESS, pitched_bytes(width, height), *address, address, pitch, width,
             height, element);
}

EXPORT CUresult cuMemAllocPitch(CUdeviceptr_v1 *address, unsigned *pitch, unsigned width, unsigned height,
                                unsigned element)
{
    ALLOCATE(cuMemAllocPitch, BLOCK_ADDRESS, pitched_bytes(width, height), *address, address, pitch, width,
             height, element);
}

EXPORT CUresult cuMemFree_v2(CUdeviceptr address)
{
    FREE_ADDRESS(cuMemFree_v2, address, address);
}

EXPORT CUresult cuMemFree(CUdeviceptr_v1 address)
{
    FREE_ADDRESS(cuMemFree, address, address);
}
