#include "devices.h"
#include "real.h"
#include "region.h"

#include <stdatomic.h>
#include <stdio.h>

enum { MAX_ORDINALS = 64 };

static _Atomic int places[MAX_ORDINALS]; /* 0: not asked yet, otherwise place + 1 */

static void format_uuid(const CUuuid *uuid, char text[UUID_BYTES])
{
    const unsigned char *b = uuid->bytes;
    snprintf(text, UUID_BYTES, "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x",
             b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13], b[14],
             b[15]);
}

int place_of_device(CUdevice device)
{
    const struct real_cuda *real = real_cuda();
    CUuuid uuid;
    char text[UUID_BYTES];
    if (device < 0 || device >= MAX_ORDINALS)
        return -1;
    int known = atomic_load(&places[device]);
    if (known)
        return known - 1;
    if (!real || !real->cuDeviceGetUuid || real->cuDeviceGetUuid(&uuid, device) != CUDA_SUCCESS)
        return -1;
    format_uuid(&uuid, text);
    int place = region_device(text);
    if (place >= 0)
        atomic_store(&places[device], place + 1);
    return place;
}

CUresult place_of_context(int *place)
{
    const struct real_cuda *real = real_cuda();
    CUdevice device;
    *place = -1;
    if (!real || !real->cuCtxGetDevice)
        return CUDA_ERROR_NOT_INITIALIZED;
    CUresult result = real->cuCtxGetDevice(&device);
    if (result == CUDA_SUCCESS)
        *place = place_of_device(device);
    return result;
}
