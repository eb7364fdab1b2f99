/* Simulated NVML: what a GPU is doing, and for whom. */
#include "memory.h"
#include "nvml_call.h"

#include <stdlib.h>
#include <time.h>

#define MIB (1024ULL * 1024ULL)

enum { PROCESS_ROOM = 4096 };

/* Pids of another pid namespace are other numbers: with `pids hidden`, these much higher ones. */
enum { HIDDEN_PID_OFFSET = 1 << 24 };

static uint64_t used_bytes(const struct call *call)
{
    uint64_t bytes = sim_memory_used(call->gpu->uuid);
    for (size_t i = 0; i < call->node->process_count; i++)
        if (call->node->processes[i].gpu == call->position)
            bytes += call->node->processes[i].memory_mib * MIB;
    return bytes;
}

static nvmlReturn_t measure(const struct call *call, struct nvml_memory_v2 *memory)
{
    if (call->mig) {
        *memory = (struct nvml_memory_v2){.total = call->mig->memory_mib * MIB,
                                          .free = call->mig->memory_mib * MIB};
        return NVML_SUCCESS;
    }
    if (call->gpu->memory_mib == UNKNOWN)
        return NVML_ERROR_NOT_SUPPORTED;
    memory->total = (uint64_t)call->gpu->memory_mib * MIB;
    memory->reserved = (uint64_t)call->gpu->reserved_mib * MIB;
    memory->used = used_bytes(call);
    uint64_t taken = memory->used + memory->reserved;
    memory->free = memory->total > taken ? memory->total - taken : 0;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, struct nvml_memory *memory)
{
    struct call call;
    struct nvml_memory_v2 measured = {0};
    nvmlReturn_t result = call_begin_device(&call, __func__, device);
    if (result == NVML_SUCCESS)
        result = memory ? measure(&call, &measured) : NVML_ERROR_INVALID_ARGUMENT;
    if (result == NVML_SUCCESS) /* version 1 counts the driver's own memory as used */
        *memory = (struct nvml_memory){
            .total = measured.total, .free = measured.free, .used = measured.used + measured.reserved};
    return call_end(&call, result);
}

EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, struct nvml_memory_v2 *memory)
{
    struct call call;
    struct nvml_memory_v2 measured = {.version = NVML_MEMORY_V2};
    nvmlReturn_t result = call_begin_device(&call, __func__, device);
    if (result == NVML_SUCCESS && !memory)
        result = NVML_ERROR_INVALID_ARGUMENT;
    if (result == NVML_SUCCESS && memory->version != NVML_MEMORY_V2)
        result = NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    if (result == NVML_SUCCESS)
        result = measure(&call, &measured);
    if (result == NVML_SUCCESS) {
        measured.version = NVML_MEMORY_V2;
        *memory = measured;
    }
    return call_end(&call, result);
}

EXPORT nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, struct nvml_utilization *utilization)
{
    struct call call;
    nvmlReturn_t result = call_begin_device(&call, __func__, device);
    if (result == NVML_SUCCESS && !utilization)
        result = NVML_ERROR_INVALID_ARGUMENT;
    if (result == NVML_SUCCESS)
        *utilization =
            (struct nvml_utilization){.gpu = call.gpu->gpu_percent, .memory = call.gpu->memory_percent};
    return call_end(&call, result);
}

EXPORT nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, int sensor, unsigned *celsius)
{
    (void)sensor;
    struct call call;
    nvmlReturn_t result = call_begin_device(&call, __func__, device);
    if (result == NVML_SUCCESS && !celsius)
        result = NVML_ERROR_INVALID_ARGUMENT;
    if (result == NVML_SUCCESS)
        *celsius = 35 + call.gpu->gpu_percent / 4;
    return call_end(&call, result);
}

EXPORT nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t device, unsigned *milliwatts)
{
    struct call call;
    nvmlReturn_t result = call_begin_device(&call, __func__, device);
    if (result == NVML_SUCCESS && !milliwatts)
        result = NVML_ERROR_INVALID_ARGUMENT;
    if (result == NVML_SUCCESS)
        *milliwatts = 30000 + call.gpu->gpu_percent * 2700;
    return call_end(&call, result);
}

/* --- processes ------------------------------------------------------------------------------------------ */

static void add(struct nvml_process_info *infos, unsigned room, unsigned *count, unsigned pid, uint64_t bytes)
{
    if (infos && *count < room)
        infos[*count] = (struct nvml_process_info){.pid = pid,
                                                   .used_bytes = bytes,
                                                   .gpu_instance_id = NVML_NO_INSTANCE,
                                                   .compute_instance_id = NVML_NO_INSTANCE};
    (*count)++;
}

static unsigned list_processes(const struct call *call, bool graphics, struct nvml_process_info *infos,
                               unsigned room)
{
    struct sim_share *shares = graphics ? NULL : calloc(PROCESS_ROOM, sizeof *shares);
    unsigned count = 0;
    for (size_t i = 0; i < call->node->process_count; i++) {
        const struct sim_process *process = &call->node->processes[i];
        if (process->gpu == call->position && process->graphics == graphics)
            add(infos, room, &count, process->pid, process->memory_mib * MIB);
    }
    size_t share_count = shares ? sim_memory_shares(call->gpu->uuid, shares, PROCESS_ROOM) : 0;
    for (size_t i = 0; i < share_count && i < PROCESS_ROOM; i++)
        add(infos, room, &count, shares[i].pid + (call->node->hidden_pids ? HIDDEN_PID_OFFSET : 0),
            shares[i].bytes);
    free(shares);
    return count;
}

static nvmlReturn_t processes(const char *function, bool graphics, nvmlDevice_t device, unsigned *count,
                              struct nvml_process_info *infos)
{
    struct call call;
    nvmlReturn_t result = call_begin_device(&call, function, device);
    if (result == NVML_SUCCESS && !count)
        result = NVML_ERROR_INVALID_ARGUMENT;
    if (result == NVML_SUCCESS) {
        unsigned room = infos ? *count : 0;
        *count = list_processes(&call, graphics, infos, room);
        if (*count > room)
            result = NVML_ERROR_INSUFFICIENT_SIZE;
    }
    return call_end(&call, result);
}

EXPORT nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t device, unsigned *count,
                                                            struct nvml_process_info *infos)
{
    return processes(__func__, false, device, count, infos);
}

EXPORT nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned *count,
                                                            struct nvml_process_info *infos)
{
    return processes(__func__, false, device, count, infos);
}

EXPORT nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v2(nvmlDevice_t device, unsigned *count,
                                                             struct nvml_process_info *infos)
{
    return processes(__func__, true, device, count, infos);
}

EXPORT nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice_t device, unsigned *count,
                                                             struct nvml_process_info *infos)
{
    return processes(__func__, true, device, count, infos);
}

EXPORT nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses_v3(nvmlDevice_t device, unsigned *count,
                                                               struct nvml_process_info *infos)
{
    (void)infos;
    struct call call;
    nvmlReturn_t result = call_begin_device(&call, __func__, device);
    if (result == NVML_SUCCESS && count)
        *count = 0; /* nobody runs MPS here */
    return call_end(&call, result);
}

EXPORT nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device,
                                                    struct nvml_process_utilization *samples, unsigned *count,
                                                    unsigned long long last_seen_us)
{
    (void)last_seen_us;
    struct call call;
    nvmlReturn_t result = call_begin_device(&call, __func__, device);
    if (result == NVML_SUCCESS && !count)
        result = NVML_ERROR_INVALID_ARGUMENT;
    if (result != NVML_SUCCESS)
        return call_end(&call, result);
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    unsigned room = samples ? *count : 0, found = 0;
    for (size_t i = 0; i < call.node->process_count; i++) {
        const struct sim_process *process = &call.node->processes[i];
        if (process->gpu != call.position || process->sm_percent == 0)
            continue;
        if (found < room)
            samples[found] =
                (struct nvml_process_utilization){.pid = process->pid,
                                                  .time_stamp_us = (unsigned long long)now.tv_sec * 1000000
                                                      + (unsigned long long)now.tv_nsec / 1000,
                                                  .sm_percent = process->sm_percent};
        found++;
    }
    *count = found;
    if (found == 0)
        result = NVML_ERROR_NOT_FOUND;
    else if (found > room)
        result = NVML_ERROR_INSUFFICIENT_SIZE;
    return call_end(&call, result);
}
