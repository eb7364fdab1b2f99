/* What nvidia-smi and everything else that asks NVML is told about memory: the container's share, as CUDA
 * says it. */
#include "limits.h"
#include "nvml_place.h"
#include "reclaim.h"
#include "region.h"

#include <stdbool.h>

struct share {
    uint64_t total, used, free;
};

/* The container's share of a GPU with `total_bytes`; false when its memory is not limited. Programs subtract
 * used from total, so it is never more, even if the limit was lowered below what they hold. */
static bool share_of(const struct real_nvml *real, nvmlDevice_t device, uint64_t total_bytes,
                     struct share *share)
{
    int place = nvml_place_limited(real, device);
    if (place < 0)
        return false;
    uint64_t limit_bytes = limits_memory_bytes(place);
    bool spills = limits_oversubscribe(place);
    true_up(place);
    share->total = spills || limit_bytes < total_bytes ? limit_bytes : total_bytes;
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
