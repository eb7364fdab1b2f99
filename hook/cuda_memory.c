/* Device memory: reserve, call, undo. A block that this hook did not charge is freed as it is. */
#include "blocks.h"
#include "depth.h"
#include "devices.h"
#include "real.h"
#include "region.h"
#include "settings.h"

#include <stdbool.h>

enum { PITCH_ALIGNMENT = 512 };

/* A charge between its reservation and the driver's answer. */
struct charge {
    struct block *block; /* NULL: nothing is counted */
};

/* Whether this call is to be counted at all. */
static bool counting(void)
{
    return settings()->active && !depth_inside();
}

/* Reserve `bytes` on the device of the current context. On failure nothing is held and the answer is the
 * caller's. */
static CUresult reserve(struct charge *charge, uint64_t bytes)
{
    int place;
    charge->block = NULL;
    if (!counting() || bytes == 0)
        return CUDA_SUCCESS;
    CUresult result = place_of_context(&place);
    if (result != CUDA_SUCCESS)
        return result;
    struct block *block = place < 0 ? NULL : block_new(place, bytes);
    if (!block || !region_reserve(place, bytes)) {
        block_free(block);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    charge->block = block;
    return CUDA_SUCCESS;
}

static void undo(struct block *block)
{
    region_release(block_device(block), block_bytes(block));
    block_free(block);
}

/* Keep the charge under the address the driver gave, or give it back if the driver refused. */
static CUresult settle(struct charge *charge, CUresult result, unsigned long long address)
{
    if (charge->block && result == CUDA_SUCCESS)
        block_add(charge->block, address);
    else if (charge->block)
        undo(charge->block);
    return result;
}

/* The shape of all allocating wrappers. `bytes` and `address` are expressions, the latter read after the
 * call. */
#define ALLOCATE(symbol, bytes, address, ...)                                                                \
    const struct real_cuda *real = real_cuda();                                                              \
    if (!real || !real->symbol)                                                                              \
        return CUDA_ERROR_NOT_INITIALIZED;                                                                   \
    struct charge charge;                                                                                    \
    CUresult result = reserve(&charge, bytes);                                                               \
    if (result != CUDA_SUCCESS)                                                                              \
        return result;                                                                                       \
    depth_enter();                                                                                           \
    result = real->symbol(__VA_ARGS__);                                                                      \
    depth_leave();                                                                                           \
    return settle(&charge, result, result == CUDA_SUCCESS ? (address) : 0)

#define FREE(symbol, address, ...)                                                                           \
    const struct real_cuda *real = real_cuda();                                                              \
    if (!real || !real->symbol)                                                                              \
        return CUDA_ERROR_NOT_INITIALIZED;                                                                   \
    struct block *block =                                                                                    \
        depth_inside() ? NULL : block_take(address); /* before the address can be given out anew */          \
    depth_enter();                                                                                           \
    CUresult result = real->symbol(__VA_ARGS__);                                                             \
    depth_leave();                                                                                           \
    if (block && result == CUDA_SUCCESS)                                                                     \
        undo(block);                                                                                         \
    else if (block)                                                                                          \
        block_add(block, address);                                                                           \
    return result

EXPORT CUresult cuMemAlloc_v2(CUdeviceptr *address, size_t bytes)
{
    ALLOCATE(cuMemAlloc_v2, bytes, *address, address, bytes);
}

EXPORT CUresult cuMemAlloc(CUdeviceptr_v1 *address, unsigned bytes)
{
    ALLOCATE(cuMemAlloc, bytes, *address, address, bytes);
}

EXPORT CUresult cuMemAllocManaged(CUdeviceptr *address, size_t bytes, unsigned flags)
{
    ALLOCATE(cuMemAllocManaged, bytes, *address, address, bytes, flags);
}

EXPORT CUresult cuMemAllocAsync(CUdeviceptr *address, size_t bytes, CUstream stream)
{
    ALLOCATE(cuMemAllocAsync, bytes, *address, address, bytes, stream);
}

EXPORT CUresult cuMemAllocAsync_ptsz(CUdeviceptr *address, size_t bytes, CUstream stream)
{
    ALLOCATE(cuMemAllocAsync_ptsz, bytes, *address, address, bytes, stream);
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
    ALLOCATE(cuMemAllocPitch_v2, pitched_bytes(width, height), *address, address, pitch, width, height,
             element);
}

EXPORT CUresult cuMemAllocPitch(CUdeviceptr_v1 *address, unsigned *pitch, unsigned width, unsigned height,
                                unsigned element)
{
    ALLOCATE(cuMemAllocPitch, pitched_bytes(width, height), *address, address, pitch, width, height, element);
}

EXPORT CUresult cuMemFree_v2(CUdeviceptr address)
{
    FREE(cuMemFree_v2, address, address);
}

EXPORT CUresult cuMemFree(CUdeviceptr_v1 address)
{
    FREE(cuMemFree, address, address);
}

EXPORT CUresult cuMemFreeAsync(CUdeviceptr address, CUstream stream)
{
    FREE(cuMemFreeAsync, address, address, stream);
}

EXPORT CUresult cuMemFreeAsync_ptsz(CUdeviceptr address, CUstream stream)
{
    FREE(cuMemFreeAsync_ptsz, address, address, stream);
}
