/* What nvidia-smi and everything else that asks NVML is told about memory: the container's share, as CUDA
 * says it. */
#include "depth.h"
#include "real.h"
#include "region.h"
#include "settings.h"

#include <stdbool.h>

struct share {
    uint64_t total, used, free;
};

/* The container's share of a GPU with `total_bytes`; false when this GPU is not limited. */
static bool share_of(const struct real_nvml *real, nvmlDevice_t device, uint64_t total_bytes,
                     struct share *share)
{
    char uuid[UUID_BYTES];
    if (!settings()->active || settings()->malformed || depth_inside() || !real->nvmlDeviceGetUUID
        || real->nvmlDeviceGetUUID(device, uuid, sizeof uuid) != NVML_SUCCESS || !region_open())
        return false;
    int place = region_device(uuid);
    uint64_t limit_bytes = region_limit_bytes(place);
    if (!limit_bytes)
        return false;
    share->total = limit_bytes < total_bytes ? limit_bytes : total_bytes;
    share->used = region_used_bytes(place);
    if (share->used > share->total)
        share->used = share->total;
    share->free = share->total - share->used;
    return true;
}

EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, struct nvml_memory *memory)
{
    const struct real_nvml *real = real_nvml();
    struct share share;
    if (!real || !real->nvmlDeviceGetMemoryInfo)
        return NVML_ERROR_FUNCTION_NOT_FOUND;
    nvmlReturn_t result = real->nvmlDeviceGetMemoryInfo(device, memory);
    if (result == NVML_SUCCESS && share_of(real, device, memory->total, &share))
        *memory = (struct nvml_memory){.total = share.total, .free = share.free, .used = share.used};
    return result;
}

EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, struct nvml_memory_v2 *memory)
{
    const struct real_nvml *real = real_nvml();
    struct share share;
    if (!real || !real->nvmlDeviceGetMemoryInfo_v2)
        return NVML_ERROR_FUNCTION_NOT_FOUND;
    nvmlReturn_t result = real->nvmlDeviceGetMemoryInfo_v2(device, memory);
    if (result == NVML_SUCCESS && share_of(real, device, memory->total, &share)) {
        memory->total = share.total;
        memory->reserved = 0;
        memory->free = share.free;
        memory->used = share.used;
    }
    return result;
}
