#include "devices.h"
#include "real.h"
#include "region.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

enum { MAX_ORDINALS = 64 };

static _Atomic int places[MAX_ORDINALS]; /* 0: not asked yet, otherwise place + 1 */

static void format_uuid(const char *kind, const CUuuid *uuid, char text[UUID_BYTES])
{
    const unsigned char *b = uuid->bytes;
    snprintf(text, UUID_BYTES, "%s-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x",
             kind, b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13],
             b[14], b[15]);
}

/* The second version of the call tells a MIG device's own uuid, the first that of its GPU: they differ only
 * for MIG. */
static bool ask_uuid(const struct real_cuda *real, CUdevice device, char text[UUID_BYTES])
{
    CUuuid own, whole;
    bool has_own = real->cuDeviceGetUuid_v2 && real->cuDeviceGetUuid_v2(&own, device) == CUDA_SUCCESS;
    bool has_whole = real->cuDeviceGetUuid && real->cuDeviceGetUuid(&whole, device) == CUDA_SUCCESS;
    if (!has_own && !has_whole)
        return false;
    bool mig = has_own && has_whole && memcmp(&own, &whole, sizeof own) != 0;
    format_uuid(mig ? "MIG" : "GPU", has_own ? &own : &whole, text);
    return true;
}

int place_of_device(CUdevice device)
{
    char text[UUID_BYTES];
    if (device < 0 || device >= MAX_ORDINALS)
        return -1;
    int known = atomic_load_explicit(&places[device], memory_order_acquire);
    if (known)
        return known - 1;
    const struct real_cuda *real = real_cuda();
    if (!real || !ask_uuid(real, device, text))
        return -1;
    int place = region_device(text);
    if (place >= 0)
        atomic_store(&places[device], place + 1);
    return place;
}

CUdevice device_at(const CUmemLocation *location)
{
    const struct real_cuda *real = real_cuda();
    int count = 0;
    CUdevice device = location->id;
    if (location->type == MEMORY_LOCATION_DEVICE_DOMAIN)
        device &= 0xFF;
    else if (location->type != MEMORY_LOCATION_DEVICE)
        return -1;
    bool counted = real && real->cuDeviceGetCount && real->cuDeviceGetCount(&count) == CUDA_SUCCESS;
    return counted && (unsigned)device >= (unsigned)count ? -1 : device;
}

CUresult place_of_context(int *place)
{
    const struct real_cuda *real = real_cuda();
    CUdevice device;
    *place = -1;
    if (!real || !real->cuCtxGetDevice)
        return CUDA_ERROR_NOT_SUPPORTED; /* none that means nothing can be allocated: something may be */
    CUresult result = real->cuCtxGetDevice(&device);
    if (result == CUDA_SUCCESS)
        *place = place_of_device(device);
    return result;
}

CUresult device_unknown(CUresult result)
{
    const struct real_cuda *real = real_cuda();
    CUcontext current = NULL;
    bool none = result == CUDA_ERROR_INVALID_CONTEXT || result == CUDA_ERROR_NOT_INITIALIZED
        || result == CUDA_ERROR_DEINITIALIZED;
    none = none && !(real->cuCtxGetCurrent && real->cuCtxGetCurrent(&current) == CUDA_SUCCESS && current);
    return none ? CUDA_SUCCESS : result;
}
