#include "pool_driver.h"
#include "depth.h"
#include "devices.h"
#include "loose.h"
#include "pool_accounts.h"
#include "real.h"
#include "reclaim.h"

bool pool_may_be_anywhere(const CUmemLocation *location, int kind)
{
    return kind == ALLOCATION_MANAGED || (unsigned)location->type > MEMORY_LOCATION_DEVICE_DOMAIN;
}

/* What an older one is asked, it refuses; and those who look for errors of a program's calls show that. */
static bool tells_of_pools(const struct real_cuda *real)
{
    int version;
    return real->cuMemPoolGetAttribute && real->cuDriverGetVersion
        && real->cuDriverGetVersion(&version) == CUDA_SUCCESS && version >= POOLS_TOLD_SINCE;
}

static CUdevice device_of(const struct real_cuda *real, CUmemoryPool handle, CUdevice first_used)
{
    CUmemLocation location;
    CUmemoryPool own;
    int kind, count;
    if (tells_of_pools(real)
        && real->cuMemPoolGetAttribute(handle, POOL_LOCATION_TYPE, &location.type) == CUDA_SUCCESS
        && real->cuMemPoolGetAttribute(handle, POOL_LOCATION_ID, &location.id) == CUDA_SUCCESS
        && real->cuMemPoolGetAttribute(handle, POOL_ALLOCATION_TYPE, &kind) == CUDA_SUCCESS) {
        CUdevice device = device_at(&location);
        return device == POOL_NOT_COUNTED && pool_may_be_anywhere(&location, kind) ? first_used : device;
    }
    if (!real->cuDeviceGetDefaultMemPool || !real->cuDeviceGetCount
        || real->cuDeviceGetCount(&count) != CUDA_SUCCESS)
        return first_used;
    for (CUdevice device = 0; device < count; device++)
        if (real->cuDeviceGetDefaultMemPool(&own, device) == CUDA_SUCCESS && own == handle)
            return device;
    return first_used;
}

CUdevice pool_ask_device(CUmemoryPool handle, CUdevice first_used)
{
    depth_enter();
    CUdevice device = device_of(real_cuda(), handle, first_used);
    depth_leave();
    return device;
}

bool pool_ask_reserved(CUmemoryPool handle, cuuint64_t *reserved)
{
    static atomic_bool told;
    const struct real_cuda *real = real_cuda();
    *reserved = 0;
    if (!handle || !real || !real->cuMemPoolGetAttribute)
        return true;
    depth_enter();
    bool tells = real->cuMemPoolGetAttribute(handle, POOL_RESERVED_BYTES, reserved) == CUDA_SUCCESS;
    depth_leave();
    if (tells)
        loose_store(&told, true);
    else
        *reserved = 0;
    return tells || !loose_load(&told);
}

void pool_trim(CUmemoryPool handle)
{
    const struct real_cuda *real = real_cuda();
    struct quiet quiet = quiet_begin();
    if (real && real->cuMemPoolTrimTo)
        real->cuMemPoolTrimTo(handle, 0);
    quiet_end(quiet);
}

bool pool_step_down(CUmemoryPool handle, CUdevice device)
{
    const struct real_cuda *real = real_cuda();
    CUmemoryPool own = NULL, current = NULL;
    depth_enter();
    if (real->cuDeviceGetDefaultMemPool)
        real->cuDeviceGetDefaultMemPool(&own, device);
    if (own && own != handle && real->cuDeviceGetMemPool && real->cuDeviceSetMemPool
        && real->cuDeviceGetMemPool(&current, device) == CUDA_SUCCESS && current == handle)
        real->cuDeviceSetMemPool(device, own);
    depth_leave();
    return device >= 0 && own != handle;
}
