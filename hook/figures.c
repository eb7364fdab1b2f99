#include "figures.h"
#include "depth.h"
#include "devices.h"
#include "loose.h"
#include "nvml_stride.h"
#include "real.h"
#include "region.h"
#include "region_slots.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PROCESSES_AT_FIRST = 64, PROCESSES_AT_MOST = 4096 };

/* By which pid NVML lists this process: the node's, which the agent tells, or, as drivers do that know pid
 * namespaces, its own. Known from when it was first seen: an entry of the other is another process's then. */
enum { NOT_SEEN, BY_OWN_PID, BY_TOLD_PID };
static _Atomic int seen;

void figures_listed_by_own_pid(bool listed)
{
    if (!listed || loose_load(&seen) == NOT_SEEN)
        loose_store(&seen, listed ? BY_OWN_PID : NOT_SEEN);
}

bool figures_device(const struct real_nvml *real, int place, nvmlDevice_t *device)
{
    const struct region *region = region_mapped();
    if (!real || !region || place < 0 || !real->nvmlInit_v2 || !real->nvmlDeviceGetHandleByUUID)
        return false;
    char uuid[UUID_BYTES];
    memcpy(uuid, region->uuids[place], sizeof uuid); /* another process may write there meanwhile */
    if (uuid[UUID_BYTES - 1])
        return false; /* NVML would read on behind it */
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

static bool was_there(const struct figures *before, unsigned pid)
{
    for (unsigned i = 0; i < before->processes && i < FIGURES_PIDS; i++)
        if (before->pids[i] == pid)
            return true;
    return false;
}

static void see(const struct nvml_process_info *info, struct figures *figures, const struct figures *before)
{
    if (figures->processes < FIGURES_PIDS)
        figures->pids[figures->processes] = info->pid;
    figures->processes++;
    if (!before || !before->absent || before->processes > FIGURES_PIDS || was_there(before, info->pid))
        return;
    figures->newcomers++;
    if (info->used_bytes > figures->come)
        figures->come = info->used_bytes;
}

/* By which pid this process is listed, and what it holds: by any, or by the known one. */
static int used_by(const struct real_nvml *real, nvmlDevice_t device, int known, unsigned told,
                   struct figures *figures, const struct figures *before)
{
    unsigned own = (unsigned)getpid();
    int found = NOT_SEEN;
    for (unsigned room = PROCESSES_AT_FIRST; room <= PROCESSES_AT_MOST; room *= 4) {
        char *infos = calloc(room, STRIDE_DETAIL);
        unsigned count = room;
        nvmlReturn_t result = NVML_ERROR_MEMORY;
        size_t stride = infos ? (size_t)list(real, device, &count, infos, &result) : 0;
        for (unsigned i = 0; result == NVML_SUCCESS && i < count && i < room; i++) {
            struct nvml_process_info info;
            memcpy(&info, infos + i * stride, sizeof info);
            if (info.used_bytes > LEDGER_MOST_BYTES) /* all bits: the driver does not tell */
                continue;
            see(&info, figures, before);
            int by = info.pid && info.pid == told ? BY_TOLD_PID : info.pid == own ? BY_OWN_PID : NOT_SEEN;
            if (by == BY_TOLD_PID && told == own && known) /* without a pid namespace: it was believed */
                by = known;
            if (by == NOT_SEEN || by < found || (known && by != known))
                continue;
            figures->own = info.used_bytes;
            found = by;
        }
        free(infos);
        figures->absent = result == NVML_SUCCESS && found == NOT_SEEN;
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
    return atomic_load_explicit(&seen, memory_order_relaxed) || region_host_pid() > 0;
}

/* Whether this process is listed, and so what it holds.
 *
 * The pid that was told is believed at once: nobody else on the node has it. Our own may be another's there,
 * so it has to be seen to come around the making of a context: the other pid, if it is what NVML goes by,
 * comes then too. Before any was told, who measures the first context sees to that
 * (figures_listed_by_own_pid).
 */
static bool is_listed(const struct real_nvml *real, nvmlDevice_t device, struct figures *figures,
                      const struct figures *before)
{
    int32_t told = region_host_pid();
    int known = loose_load(&seen), by = used_by(real, device, known, (unsigned)told, figures, before);
    if (by != NOT_SEEN && told > 0) {
        if (by == BY_OWN_PID && known == NOT_SEEN && !(before && before->absent))
            return false;
        loose_store(&seen, by);
    }
    return by != NOT_SEEN;
}

static uint64_t held(int place)
{
    return region_own_bytes(place) + slots_before_bytes(region_mapped(), place);
}

void figures_now(int place, struct figures *figures, const struct figures *before)
{
    const struct real_nvml *real = real_nvml_of_ours();
    static _Atomic bool started; /* by us: the program may end what it has started between two questions */
    struct nvml_memory memory;
    nvmlDevice_t device;
    *figures = (struct figures){0};
    depth_enter();
    if (!loose_load(&started) && real && real->nvmlInit_v2)
        loose_store(&started, real->nvmlInit_v2() == NVML_SUCCESS);
    figures->held_before = held(place);
    if (figures_device(real, place, &device)) {
        figures->listed = is_listed(real, device, figures, before);
        figures->own = figures->listed ? figures->own : 0;
        figures->device_known =
            real->nvmlDeviceGetMemoryInfo && real->nvmlDeviceGetMemoryInfo(device, &memory) == NVML_SUCCESS;
        figures->device = figures->device_known ? memory.used : 0;
    }
    if (!figures->device_known)
        figures->device_known = used_by_all(place, &figures->device);
    depth_leave();
    figures->held_after = held(place);
}
