/* What a program is told about device memory: its share of the GPU as if it were the whole. */
#include "depth.h"
#include "devices.h"
#include "real.h"
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

/* Turn the GPU's figures into the container's. */
static void narrow(int place, uint64_t *free_bytes, uint64_t *total_bytes)
{
    uint64_t limit_bytes = region_limit_bytes(place);
    if (!limit_bytes)
        return;
    uint64_t used = region_used_bytes(place);
    *total_bytes = least(limit_bytes, *total_bytes);
    *free_bytes = least(*free_bytes, *total_bytes > used ? *total_bytes - used : 0);
}

EXPORT CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes)
{
    const struct real_cuda *real = real_cuda();
    int place;
    if (!real || !real->cuMemGetInfo_v2)
        return CUDA_ERROR_NOT_INITIALIZED;
    CUresult result = real->cuMemGetInfo_v2(free_bytes, total_bytes);
    if (result != CUDA_SUCCESS || !settings()->active || depth_inside() || !free_bytes || !total_bytes)
        return result;
    uint64_t room = *free_bytes, total = *total_bytes;
    if (place_of_context(&place) == CUDA_SUCCESS)
        narrow(place, &room, &total);
    *free_bytes = room;
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
    if (result != CUDA_SUCCESS || !settings()->active || depth_inside() || !free_bytes || !total_bytes)
        return result;
    uint64_t room = *free_bytes, total = *total_bytes;
    if (place_of_context(&place) == CUDA_SUCCESS)
        narrow(place, &room, &total);
    *free_bytes = clamped(room);
    *total_bytes = clamped(total);
    return result;
}

static uint64_t narrowed_total(CUdevice device, uint64_t total_bytes)
{
    uint64_t limit_bytes = region_limit_bytes(place_of_device(device));
    return limit_bytes ? least(limit_bytes, total_bytes) : total_bytes;
}

EXPORT CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device)
{
    const struct real_cuda *real = real_cuda();
    if (!real || !real->cuDeviceTotalMem_v2)
        return CUDA_ERROR_NOT_INITIALIZED;
    CUresult result = real->cuDeviceTotalMem_v2(bytes, device);
    if (result == CUDA_SUCCESS && settings()->active && !depth_inside() && bytes)
        *bytes = narrowed_total(device, *bytes);
    return result;
}

EXPORT CUresult cuDeviceTotalMem(unsigned *bytes, CUdevice device)
{
    const struct real_cuda *real = real_cuda();
    if (!real || !real->cuDeviceTotalMem)
        return CUDA_ERROR_NOT_INITIALIZED;
    CUresult result = real->cuDeviceTotalMem(bytes, device);
    if (result == CUDA_SUCCESS && settings()->active && !depth_inside() && bytes)
        *bytes = clamped(narrowed_total(device, *bytes));
    return result;
}
