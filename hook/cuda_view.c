/* What a program is told about device memory: its share of the GPU as if it were the whole. */
#include "depth.h"
#include "devices.h"
#include "limits.h"
#include "real.h"
#include "reclaim.h"
#include "region.h"
#include "settings.h"

#include <stdbool.h>

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static unsigned clamped(uint64_t bytes)
{
    return (unsigned)least(bytes, UINT32_MAX);
}

static uint64_t narrowed_total(int place, uint64_t total_bytes)
{
    uint64_t limit_bytes = limits_memory_bytes(place);
    if (!limit_bytes)
        return total_bytes;
    return limits_oversubscribe(place) ? limit_bytes : least(limit_bytes, total_bytes);
}

/* Turn the GPU's figures into the container's. */
static void narrow(int place, uint64_t *free_bytes, uint64_t *total_bytes)
{
    if (!limits_memory_bytes(place))
        return;
    bool spills = limits_oversubscribe(place); /* then the GPU's own room is not what counts */
    true_up(place);
    uint64_t used = region_used_bytes(place), total = narrowed_total(place, *total_bytes);
    uint64_t room = total > used ? total - used : 0;
    *total_bytes = total;
    *free_bytes = spills ? room : least(*free_bytes, room);
}

/* Who wants one of the two figures may pass NULL for the other, as OptiX does. */
EXPORT CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes)
{
    const struct real_cuda *real = real_cuda();
    int place;
    if (!real || !real->cuMemGetInfo_v2)
        return CUDA_ERROR_NOT_INITIALIZED;
    CUresult result = real->cuMemGetInfo_v2(free_bytes, total_bytes);
    if (result != CUDA_SUCCESS || !settings()->active || depth_inside())
        return result;
    uint64_t room = free_bytes ? *free_bytes : 0, total = total_bytes ? *total_bytes : UINT64_MAX;
    if (place_of_context(&place) == CUDA_SUCCESS)
        narrow(place, &room, &total);
    if (free_bytes)
        *free_bytes = room;
    if (total_bytes)
        *total_bytes = total;
    return result;
}

EXPORT CUresult cuMemGetInfo(unsigned *free_bytes, unsigned *total_bytes)
{
    const struct real_cuda *real = real_cuda();
    int place;
    if (!real || !real->cuMemGetInfo)
        return CUDA_ERROR_NOT_INITIALIZED;
    CUresult result = real->cuMemGetInfo(free_bytes, total_bytes);
    if (result != CUDA_SUCCESS || !settings()->active || depth_inside())
        return result;
    uint64_t room = free_bytes ? *free_bytes : 0, total = total_bytes ? *total_bytes : UINT64_MAX;
    if (place_of_context(&place) == CUDA_SUCCESS)
        narrow(place, &room, &total);
    if (free_bytes)
        *free_bytes = clamped(room);
    if (total_bytes)
        *total_bytes = clamped(total);
    return result;
}

EXPORT CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device)
{
    const struct real_cuda *real = real_cuda();
    if (!real || !real->cuDeviceTotalMem_v2)
        return CUDA_ERROR_NOT_INITIALIZED;
    CUresult result = real->cuDeviceTotalMem_v2(bytes, device);
    if (result == CUDA_SUCCESS && settings()->active && !depth_inside() && bytes)
        *bytes = narrowed_total(place_of_device(device), *bytes);
    return result;
}

EXPORT CUresult cuDeviceTotalMem(unsigned *bytes, CUdevice device)
{
    const struct real_cuda *real = real_cuda();
    if (!real || !real->cuDeviceTotalMem)
        return CUDA_ERROR_NOT_INITIALIZED;
    CUresult result = real->cuDeviceTotalMem(bytes, device);
    if (result == CUDA_SUCCESS && settings()->active && !depth_inside() && bytes)
        *bytes = clamped(narrowed_total(place_of_device(device), *bytes));
    return result;
}
