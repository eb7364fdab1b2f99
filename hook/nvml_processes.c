/* Who uses a GPU, as the container is told: its own living processes, by the pids it knows, with the bytes
 * that are charged to each, so that they add up to the memory in use. The driver is asked first, and what it
 * refuses stays refused; of whom it would tell, the whole node, nothing is passed on.
 *
 * Graphics and MPS lists are empty: what such processes hold is not charged.
 */
#include "depth.h"
#include "figures.h"
#include "nvml_place.h"
#include "nvml_stride.h"
#include "region.h"
#include "region_slots.h"

#include <stdbool.h>
#include <string.h>

/* An entry of the longest kind; the others are its beginning. */
static struct nvml_process_detail entry_for(const struct real_nvml *real, nvmlDevice_t device)
{
    struct nvml_process_detail entry = {0};
    if (!real->nvmlDeviceGetGpuInstanceId
        || real->nvmlDeviceGetGpuInstanceId(device, &entry.gpu_instance_id) != NVML_SUCCESS)
        entry.gpu_instance_id = NVML_NO_INSTANCE;
    if (!real->nvmlDeviceGetComputeInstanceId
        || real->nvmlDeviceGetComputeInstanceId(device, &entry.compute_instance_id) != NVML_SUCCESS)
        entry.compute_instance_id = NVML_NO_INSTANCE;
    return entry;
}

/* Fill the caller's array as the driver would: all or its needed length. */
static nvmlReturn_t tell(const struct real_nvml *real, nvmlDevice_t device, int place,
                         enum nvml_stride stride, unsigned *count, void *infos)
{
    unsigned room = infos ? *count : 0, found = 0;
    figures_device(real, place, &device); /* of a GPU in MIG mode the instance's */
    struct nvml_process_detail entry = entry_for(real, device);
    struct member member;
    if (*count && !infos)
        return NVML_ERROR_INVALID_ARGUMENT;
    region_used_bytes(place); /* sees to the dead first */
    for (int32_t i = 0; slots_next(region_mapped(), place, &i, &member);) {
        if (!member.bytes)
            continue;
        entry.pid = (unsigned)member.pid;
        entry.used_bytes = member.bytes;
        if (found < room)
            memcpy((char *)infos + (size_t)found * stride, &entry, stride);
        found++;
    }
    *count = found;
    return found > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

static nvmlReturn_t tell_nobody(unsigned *count)
{
    *count = 0;
    return NVML_SUCCESS;
}

/* What a device whose memory is limited says: us, in entries of this stride, or nobody. */
#define NOBODY ((enum nvml_stride)0)
#define AS_DRIVER ((enum nvml_stride)1) /* the driver's own, which is asked for then */
#define LIST_OF(name, type)                                                                                  \
    static nvmlReturn_t name(nvmlReturn_t (*function)(nvmlDevice_t, unsigned *, type *),                     \
                             nvmlDevice_t device, unsigned *count, type *infos, enum nvml_stride stride)     \
    {                                                                                                        \
        const struct real_nvml *real = real_nvml();                                                          \
        unsigned none = 0;                                                                                   \
        if (!function)                                                                                       \
            return NVML_ERROR_FUNCTION_NOT_FOUND;                                                            \
        int place = count ? nvml_place_limited(real, device) : -1;                                           \
        if (place < 0)                                                                                       \
            return function(device, count, infos);                                                           \
        depth_enter();                                                                                       \
        nvmlReturn_t result = function(device, &none, NULL);                                                 \
        depth_leave();                                                                                       \
        if (result != NVML_SUCCESS && result != NVML_ERROR_INSUFFICIENT_SIZE)                                \
            return result;                                                                                   \
        if (stride == NOBODY)                                                                                \
            return tell_nobody(count);                                                                       \
        stride = stride == AS_DRIVER ? nvml_stride_v3(real) : stride;                                        \
        return tell(real, device, place, stride, count, infos);                                              \
    }
LIST_OF(list_v1, struct nvml_process_info_v1)
LIST_OF(list, struct nvml_process_info)
#define REAL(symbol) (real_nvml() ? real_nvml()->symbol : NULL)

EXPORT nvmlReturn_t nvmlDeviceGetComputeRunningProcesses(nvmlDevice_t device, unsigned *count,
                                                         struct nvml_process_info_v1 *infos)
{
    return list_v1(REAL(nvmlDeviceGetComputeRunningProcesses), device, count, infos, STRIDE_V1);
}

EXPORT nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t device, unsigned *count,
                                                            struct nvml_process_info *infos)
{
    return list(REAL(nvmlDeviceGetComputeRunningProcesses_v2), device, count, infos, STRIDE_V2);
}

EXPORT nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned *count,
                                                            struct nvml_process_info *infos)
{
    return list(REAL(nvmlDeviceGetComputeRunningProcesses_v3), device, count, infos, AS_DRIVER);
}

EXPORT nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses(nvmlDevice_t device, unsigned *count,
                                                          struct nvml_process_info_v1 *infos)
{
    return list_v1(REAL(nvmlDeviceGetGraphicsRunningProcesses), device, count, infos, NOBODY);
}

EXPORT nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v2(nvmlDevice_t device, unsigned *count,
                                                             struct nvml_process_info *infos)
{
    return list(REAL(nvmlDeviceGetGraphicsRunningProcesses_v2), device, count, infos, NOBODY);
}

EXPORT nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice_t device, unsigned *count,
                                                             struct nvml_process_info *infos)
{
    return list(REAL(nvmlDeviceGetGraphicsRunningProcesses_v3), device, count, infos, NOBODY);
}

EXPORT nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses(nvmlDevice_t device, unsigned *count,
                                                            struct nvml_process_info_v1 *infos)
{
    return list_v1(REAL(nvmlDeviceGetMPSComputeRunningProcesses), device, count, infos, NOBODY);
}

EXPORT nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses_v2(nvmlDevice_t device, unsigned *count,
                                                               struct nvml_process_info *infos)
{
    return list(REAL(nvmlDeviceGetMPSComputeRunningProcesses_v2), device, count, infos, NOBODY);
}

EXPORT nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses_v3(nvmlDevice_t device, unsigned *count,
                                                               struct nvml_process_info *infos)
{
    return list(REAL(nvmlDeviceGetMPSComputeRunningProcesses_v3), device, count, infos, NOBODY);
}

EXPORT nvmlReturn_t nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t device,
                                                          struct nvml_process_detail_list *list)
{
    const struct real_nvml *real = real_nvml();
    if (!real || !real->nvmlDeviceGetRunningProcessDetailList)
        return NVML_ERROR_FUNCTION_NOT_FOUND;
    /* Of another version nothing but its number is known. */
    bool known = list && list->version == NVML_PROCESS_DETAIL_LIST_V1;
    int place = known ? nvml_place_limited(real, device) : -1;
    if (place < 0)
        return real->nvmlDeviceGetRunningProcessDetailList(device, list);
    struct nvml_process_detail_list asked = {.version = list->version, .mode = list->mode};
    depth_enter();
    nvmlReturn_t result = real->nvmlDeviceGetRunningProcessDetailList(device, &asked);
    depth_leave();
    if (result != NVML_SUCCESS && result != NVML_ERROR_INSUFFICIENT_SIZE)
        return result;
    if (list->mode == NVML_PROCESSES_COMPUTE || list->mode == NVML_PROCESSES_ALL)
        return tell(real, device, place, STRIDE_DETAIL, &list->count, list->details);
    return tell_nobody(&list->count);
}
