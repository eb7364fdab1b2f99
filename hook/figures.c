#include "figures.h"
#include "depth.h"
#include "devices.h"
#include "nvml_stride.h"
#include "real.h"
#include "region.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PROCESSES_AT_FIRST = 64, PROCESSES_AT_MOST = 4096 };

/* Whether NVML lists this process by its own pid: it began to when our first context came to be. */
static _Atomic bool listed_by_own_pid;

void figures_listed_by_own_pid(bool listed)
{
    atomic_store(&listed_by_own_pid, listed);
}

/* Its handle of the device at `place`; false when NVML cannot be used. */
static bool find_device(const struct real_nvml *real, int place, nvmlDevice_t *device)
{
    const struct region *region = region_mapped();
    if (!real || !region || place < 0 || !real->nvmlInit_v2 || !real->nvmlDeviceGetHandleByUUID)
        return false;
    const char *uuid = region->uuids[place];
    /* Told to look again only when it was not started: each start would be one more to end. */
    nvmlReturn_t result = real->nvmlDeviceGetHandleByUUID(uuid, device);
    if (result == NVML_ERROR_UNINITIALIZED && real->nvmlInit_v2() == NVML_SUCCESS)
        result = real->nvmlDeviceGetHandleByUUID(uuid, device);
    return result == NVML_SUCCESS;
}

/* `infos` has room for `count` of the longest entries that any driver writes. How long they are: */
static enum nvml_stride list(const struct real_nvml *real, nvmlDevice_t device, unsigned *count, void *infos,
                             nvmlReturn_t *result)
{
    *result = NVML_ERROR_FUNCTION_NOT_FOUND;
    if (real->nvmlDeviceGetComputeRunningProcesses_v3) {
        *result = real->nvmlDeviceGetComputeRunningProcesses_v3(device, count, infos);
        return nvml_stride_v3(real);
    }
    if (real->nvmlDeviceGetComputeRunningProcesses_v2)
        *result = real->nvmlDeviceGetComputeRunningProcesses_v2(device, count, infos);
    return STRIDE_V2;
}

/* What the process with this pid holds; false when it is not listed. */
static bool used_by(const struct real_nvml *real, nvmlDevice_t device, unsigned pid, uint64_t *bytes)
{
    bool found = false;
    for (unsigned room = PROCESSES_AT_FIRST; room <= PROCESSES_AT_MOST; room *= 4) {
        char *infos = calloc(room, STRIDE_DETAIL);
        unsigned count = room;
        nvmlReturn_t result = NVML_ERROR_MEMORY;
        size_t stride = infos ? (size_t)list(real, device, &count, infos, &result) : 0;
        for (unsigned i = 0; result == NVML_SUCCESS && i < count && i < room; i++) {
            struct nvml_process_info info;
            memcpy(&info, infos + i * stride, sizeof info);
            /* all bits: the driver does not tell */
            if (info.pid != pid || info.used_bytes > LEDGER_MOST_BYTES)
                continue;
            *bytes = info.used_bytes;
            found = true;
        }
        free(infos);
        if (result != NVML_ERROR_INSUFFICIENT_SIZE)
            break;
    }
    return found;
}

/* Where NVML is not, or does not tell: what CUDA says, if a context of the device is current. */
static bool used_by_all(int place, uint64_t *bytes)
{
    const struct real_cuda *real = real_cuda();
    int current;
    size_t free_bytes, total_bytes;
    if (!real->cuMemGetInfo_v2 || place_of_context(&current) != CUDA_SUCCESS || current != place
        || real->cuMemGetInfo_v2(&free_bytes, &total_bytes) != CUDA_SUCCESS)
        return false;
    *bytes = total_bytes - free_bytes;
    return true;
}

bool figures_pid_is_known(void)
{
    return atomic_load_explicit(&listed_by_own_pid, memory_order_relaxed) || region_host_pid() > 0;
}

static unsigned pid_on_node(void)
{
    int32_t told = region_host_pid();
    return told > 0 ? (unsigned)told : (unsigned)getpid();
}

void figures_now(int place, struct figures *figures)
{
    const struct real_nvml *real = real_nvml_of_ours();
    struct nvml_memory memory;
    nvmlDevice_t device;
    *figures = (struct figures){0};
    depth_enter();
    figures->held_before = region_own_bytes(place);
    if (find_device(real, place, &device)) {
        figures->listed = used_by(real, device, pid_on_node(), &figures->own);
        figures->device_known =
            real->nvmlDeviceGetMemoryInfo && real->nvmlDeviceGetMemoryInfo(device, &memory) == NVML_SUCCESS;
        figures->device = figures->device_known ? memory.used : 0;
    }
    if (!figures->device_known)
        figures->device_known = used_by_all(place, &figures->device);
    depth_leave();
    figures->held_after = region_own_bytes(place);
}
