/* How busy a GPU is, as the container is told. Where its share of the GPU's time is enforced: how much of
 * that share it used, 100 % being all of it. And of its own processes only, as far as it is known which they
 * are: by the pid in their slot, or by that on the node once the agent has written it there.
 *
 * The engines for video are not limited, nor is the memory's bandwidth: of the latter the container is told
 * at most what it used of the GPU, as more cannot be its own.
 */
#include "busy.h"
#include "depth.h"
#include "leases.h"
#include "limits.h"
#include "monotonic.h"
#include "nvml_place.h"
#include "region.h"
#include "region_slots.h"

#include <stdbool.h>
#include <stdlib.h>

enum { MOST_ENTRIES = 65536, SPARE_ENTRIES = 16 };

/* --- the container's own time ----------------------------------------------------------------------------
 */

static unsigned percent_of(uint64_t spent_ns, uint64_t window_ns, uint64_t permille)
{
    uint64_t one_ns = window_ns / 100000 * permille; /* of a hundred */
    if (one_ns == 0)
        return 0;
    uint64_t percent = spent_ns / one_ns + (spent_ns % one_ns > one_ns / 2);
    return percent >= 100 ? 100 : (unsigned)percent;
}

static unsigned least(unsigned a, unsigned b)
{
    return a < b ? a : b;
}

/* All that it may use now. What is lent raises no share that the process has lowered itself. */
static unsigned whole_permille(const struct core_share *share)
{
    bool lent =
        share->permille == share->container_permille && leases_hold(share->lent_until_ns, monotonic_ns());
    unsigned more = lent ? least(WHOLE_GPU_PERMILLE, share->lent_permille) : 0;
    return least(WHOLE_GPU_PERMILLE, share->permille + more);
}

/* What the container used of its share of late, in percent. */
static unsigned own_percent(int place, const struct core_share *share)
{
    struct region_device *device = region_device_at(place);
    uint64_t window_ns;
    if (!device)
        return 0;
    uint64_t spent_ns = busy_ns(device, &window_ns);
    return percent_of(spent_ns, window_ns, whole_permille(share));
}

/* Whether the container's share of this device's time is enforced; then also how much it used of it. */
static bool own_utilization(const struct real_nvml *real, nvmlDevice_t device, unsigned *percent)
{
    int place = nvml_place(real, device);
    struct core_share share = limits_core(place);
    if (place < 0 || !share.enforced)
        return false;
    *percent = own_percent(place, &share);
    return true;
}

EXPORT nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, struct nvml_utilization *utilization)
{
    const struct real_nvml *real = real_nvml();
    unsigned percent;
    if (!real || !real->nvmlDeviceGetUtilizationRates)
        return NVML_ERROR_FUNCTION_NOT_FOUND;
    nvmlReturn_t result = real->nvmlDeviceGetUtilizationRates(device, utilization);
    if (result == NVML_SUCCESS && own_utilization(real, device, &percent))
        *utilization =
            (struct nvml_utilization){.gpu = percent, .memory = least(utilization->memory, percent)};
    return result;
}

EXPORT nvmlReturn_t nvmlDeviceGetSamples(nvmlDevice_t device, int type, unsigned long long last_seen_us,
                                         int *value_type, unsigned *count, struct nvml_sample *samples)
{
    const struct real_nvml *real = real_nvml();
    unsigned percent;
    if (!real || !real->nvmlDeviceGetSamples)
        return NVML_ERROR_FUNCTION_NOT_FOUND;
    nvmlReturn_t result = real->nvmlDeviceGetSamples(device, type, last_seen_us, value_type, count, samples);
    if (result != NVML_SUCCESS || !samples || (type != NVML_SAMPLES_GPU && type != NVML_SAMPLES_MEMORY)
        || *value_type != NVML_VALUE_UNSIGNED || !own_utilization(real, device, &percent))
        return result;
    for (unsigned i = 0; i < *count; i++)
        samples[i].value[0] = type == NVML_SAMPLES_GPU ? percent : least(samples[i].value[0], percent);
    return result;
}

/* --- by process ------------------------------------------------------------------------------------------
 */

/* The place of a device that is limited in memory or time: others' processes are then not shown. */
static int limited_place(const struct real_nvml *real, nvmlDevice_t device)
{
    int place = nvml_place(real, device);
    bool limited =
        place >= 0 && (limits_memory_bytes(place) || limits_core(place).permille < WHOLE_GPU_PERMILLE);
    return limited ? place : -1;
}

/* If a pid that the driver names is a process of this container, make it the pid that the container knows.
 * It goes by pids on the node, which are told and come first, or by their own, if it knows pid namespaces.
 * Where it goes by the node's, another's may be as one of ours in here: that then shows with the other's
 * load, and nothing is charged by it. */
static bool translate(int place, unsigned *pid)
{
    struct member member;
    bool own = false;
    for (int32_t i = 0; slots_next(region_mapped(), place, &i, &member) && *pid;) {
        if ((unsigned)member.host_pid == *pid) {
            *pid = (unsigned)member.pid;
            return true;
        }
        own |= (unsigned)member.pid == *pid;
    }
    return own;
}

/* Percent of the GPU as percent of the share. */
static unsigned of_share(int place, unsigned percent)
{
    struct core_share share = limits_core(place);
    return share.enforced ? least(100, least(100, percent) * WHOLE_GPU_PERMILLE / whole_permille(&share))
                          : percent;
}

static nvmlReturn_t answer(unsigned found, unsigned room, unsigned *count)
{
    *count = found;
    return found == 0 ? NVML_ERROR_NOT_FOUND : found > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

static unsigned entries_for(unsigned needed)
{
    return least(needed, MOST_ENTRIES) + SPARE_ENTRIES;
}

EXPORT nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device,
                                                    struct nvml_process_utilization *samples, unsigned *count,
                                                    unsigned long long last_seen_us)
{
    const struct real_nvml *real = real_nvml();
    unsigned needed = 0, found = 0, room = samples && count ? *count : 0;
    if (!real || !real->nvmlDeviceGetProcessUtilization)
        return NVML_ERROR_FUNCTION_NOT_FOUND;
    int place = count ? limited_place(real, device) : -1;
    if (place < 0)
        return real->nvmlDeviceGetProcessUtilization(device, samples, count, last_seen_us);
    depth_enter();
    nvmlReturn_t result = real->nvmlDeviceGetProcessUtilization(device, NULL, &needed, last_seen_us);
    struct nvml_process_utilization *all = NULL;
    if (result == NVML_SUCCESS || result == NVML_ERROR_INSUFFICIENT_SIZE) {
        needed = entries_for(needed);
        all = calloc(needed, sizeof *all);
        result = all ? real->nvmlDeviceGetProcessUtilization(device, all, &needed, last_seen_us)
                     : NVML_ERROR_MEMORY;
    }
    depth_leave();
    for (unsigned i = 0; result == NVML_SUCCESS && i < needed; i++) {
        if (!translate(place, &all[i].pid))
            continue;
        all[i].sm_percent = of_share(place, all[i].sm_percent);
        if (found < room)
            samples[found] = all[i];
        found++;
    }
    free(all);
    return result == NVML_SUCCESS ? answer(found, room, count) : result;
}

EXPORT nvmlReturn_t nvmlDeviceGetProcessesUtilizationInfo(nvmlDevice_t device,
                                                          struct nvml_processes_utilization *all)
{
    const struct real_nvml *real = real_nvml();
    unsigned found = 0;
    if (!real || !real->nvmlDeviceGetProcessesUtilizationInfo)
        return NVML_ERROR_FUNCTION_NOT_FOUND;
    bool known = all && all->version == NVML_PROCESSES_UTILIZATION_V1;
    int place = known ? limited_place(real, device) : -1;
    if (place < 0)
        return real->nvmlDeviceGetProcessesUtilizationInfo(device, all);
    unsigned room = all->infos ? all->count : 0;
    struct nvml_processes_utilization asked = {.version = all->version, .last_seen_us = all->last_seen_us};
    depth_enter();
    nvmlReturn_t result = real->nvmlDeviceGetProcessesUtilizationInfo(device, &asked);
    if (result == NVML_SUCCESS || result == NVML_ERROR_INSUFFICIENT_SIZE) {
        asked.count = entries_for(asked.count);
        asked.infos = calloc(asked.count, sizeof *asked.infos);
        result =
            asked.infos ? real->nvmlDeviceGetProcessesUtilizationInfo(device, &asked) : NVML_ERROR_MEMORY;
    }
    depth_leave();
    for (unsigned i = 0; result == NVML_SUCCESS && i < asked.count; i++) {
        if (!translate(place, &asked.infos[i].pid))
            continue;
        asked.infos[i].sm_percent = of_share(place, asked.infos[i].sm_percent);
        if (found < room)
            all->infos[found] = asked.infos[i];
        found++;
    }
    free(asked.infos);
    return result == NVML_SUCCESS ? answer(found, room, &all->count) : result;
}
