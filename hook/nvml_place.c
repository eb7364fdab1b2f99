#include "nvml_place.h"
#include "depth.h"
#include "limits.h"
#include "region.h"
#include "settings.h"

int nvml_place(const struct real_nvml *real, nvmlDevice_t device)
{
    char uuid[UUID_BYTES];
    if (!settings()->active || settings()->malformed || depth_inside() || !real->nvmlDeviceGetUUID
        || real->nvmlDeviceGetUUID(device, uuid, sizeof uuid) != NVML_SUCCESS || !region_open())
        return -1;
    return region_device(uuid);
}

int nvml_place_limited(const struct real_nvml *real, nvmlDevice_t device)
{
    int place = nvml_place(real, device);
    return place >= 0 && limits_memory_bytes(place) ? place : -1;
}
