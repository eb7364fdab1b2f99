#include "nvml_place.h"
#include "depth.h"
#include "figures.h"
#include "limits.h"
#include "region.h"
#include "settings.h"

#include <string.h>

/* The place of an instance that the container uses of the GPU with this uuid, which is in MIG mode; -1 where
 * there is none. */
static int place_of_instance(const struct real_nvml *real, const char *uuid)
{
    const struct region *region = region_mapped();
    nvmlDevice_t device;
    char whose[UUID_BYTES];
    for (int i = 0; i < MAX_DEVICES && real->nvmlDeviceGetDeviceHandleFromMigDeviceHandle; i++)
        if (region->uuids[i][0] == 'M' && figures_device(real, i, &device)
            && real->nvmlDeviceGetDeviceHandleFromMigDeviceHandle(device, &device) == NVML_SUCCESS
            && real->nvmlDeviceGetUUID(device, whose, sizeof whose) == NVML_SUCCESS
            && strcmp(whose, uuid) == 0)
            return region_device(region->uuids[i]);
    return -1;
}

/* Of a GPU in MIG mode what is told is its instance's: CUDA knows none but that, and NVML lists what a
 * process holds there for both. A place of its own would have it charged twice. */
int nvml_place(const struct real_nvml *real, nvmlDevice_t device)
{
    char uuid[UUID_BYTES];
    if (!settings()->active || settings()->malformed || depth_inside() || !real->nvmlDeviceGetUUID
        || real->nvmlDeviceGetUUID(device, uuid, sizeof uuid) != NVML_SUCCESS || !region_open())
        return -1;
    int place = place_of_instance(real, uuid);
    return place < 0 ? region_device(uuid) : place;
}

int nvml_place_limited(const struct real_nvml *real, nvmlDevice_t device)
{
    int place = nvml_place(real, device);
    return place >= 0 && limits_memory_bytes(place) ? place : -1;
}
