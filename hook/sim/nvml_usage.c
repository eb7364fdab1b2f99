/* Simulated NVML: what a GPU is doing, and for whom. */
#include "memory.h"
#include "nvml_call.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MIB (1024ULL * 1024ULL)

enum { PROCESS_ROOM = 4096 };

/* Pids of another pid namespace are other numbers: with `pids hidden`, these much higher ones. */
enum { HIDDEN_PID_OFFSET = 1 << 24 };

/* Whether a process is one of what was asked about: a MIG device's are its own, a GPU's are all of them. */
static bool counts(const struct call *call, const struct sim_process *process)
{
    return process->gpu == call->position
        && (!call->mig
            || (process->gpu_instance == call->mig->gpu_instance
                && process->compute_instance == call->mig->compute_instance));
}

static uint64_t programs_bytes(const struct call *call)
{
    uint64_t bytes = sim_memory_used(call->mig ? call->mig->uuid : call->gpu->uuid);
    for (size_t i = 0; !call->mig && i < MAX_MIGS; i++)
        if (call->gpu->migs[i].present)
            bytes += sim_memory_used(call->gpu->migs[i].uuid);
    return bytes;
}

/* Of the world outside: whether it is there while the programs hold so much. */
static bool is_there(const struct call *call, const struct sim_process *process, uint64_t programs)
{
    return counts(call, process) && programs >= (uint64_t)process->from_mib * MIB;
}

static uint64_t used_bytes(const struct call *call)
{
    uint64_t programs = programs_bytes(call), bytes = programs;
    for (size_t i = 0; i < call->node->process_count; i++)
        if (is_there(call, &call->node->processes[i], programs))
            bytes += call->node->processes[i].memory_mib * MIB;
    return bytes;
}

static nvmlReturn_t measure(const struct call *call, struct nvml_memory_v2 *memory)
{
    if (!call->mig && call->gpu->memory_mib == UNKNOWN)
        return NVML_ERROR_NOT_SUPPORTED;
    memory->total = (call->mig ? call->mig->memory_mib : (uint64_t)call->gpu->memory_mib) * MIB;
    memory->reserved = call->mig ? 0 : (uint64_t)call->gpu->reserved_mib * MIB;
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

/* What a list is written into: entries of one of the three lengths, of which the shorter are the beginning of
 * the longer. */
struct list {
    char *infos;
    size_t stride;
    unsigned room, count;
};

static void add(struct list *list, unsigned pid, uint64_t bytes, unsigned gpu_instance,
                unsigned compute_instance)
{
    struct nvml_process_detail entry = {.pid = pid,
                                        .used_bytes = bytes,
                                        .gpu_instance_id = gpu_instance,
                                        .compute_instance_id = compute_instance};
    if (list->count < list->room)
        memcpy(list->infos + list->count * list->stride, &entry, list->stride);
    list->count++;
}

static void add_played(const struct call *call, bool graphics, struct list *list)
{
    uint64_t programs = programs_bytes(call);
    for (size_t i = 0; i < call->node->process_count; i++) {
        const struct sim_process *process = &call->node->processes[i];
        if (is_there(call, process, programs) && process->graphics == graphics)
            add(list, process->pid, process->memory_mib * MIB, process->gpu_instance,
                process->compute_instance);
    }
}

/* Programs that use the simulated CUDA: of a MIG device (NULL: of the whole GPU). */
static void add_real(const struct call *call, const struct sim_mig *mig, struct list *list)
{
    struct sim_share *shares = calloc(PROCESS_ROOM, sizeof *shares);
    size_t count = shares ? sim_memory_shares(mig ? mig->uuid : call->gpu->uuid, shares, PROCESS_ROOM) : 0;
    for (size_t i = 0; i < count && i < PROCESS_ROOM; i++)
        add(list, shares[i].pid + (call->node->hidden_pids ? HIDDEN_PID_OFFSET : 0), shares[i].bytes,
            mig ? mig->gpu_instance : NVML_NO_INSTANCE, mig ? mig->compute_instance : NVML_NO_INSTANCE);
    free(shares);
}

static void add_all_real(const struct call *call, struct list *list)
{
    add_real(call, call->mig, list);
    for (size_t i = 0; !call->mig && i < MAX_MIGS; i++)
        if (call->gpu->migs[i].present)
            add_real(call, &call->gpu->migs[i], list);
}

/* Nobody runs MPS here. */
static void add_mode(const struct call *call, unsigned mode, struct list *list)
{
    if (mode == NVML_PROCESSES_GRAPHICS || mode == NVML_PROCESSES_ALL)
        add_played(call, true, list);
    if (mode == NVML_PROCESSES_COMPUTE || mode == NVML_PROCESSES_ALL) {
        add_played(call, false, list);
        add_all_real(call, list);
    }
}

/* Between 535.43 and 535.98 the third version had the entries of the later detail list. */
static size_t stride_v3(const struct sim_node *node)
{
    int branch, release;
    return sscanf(node->driver_version, "%d.%d", &branch, &release) == 2 && branch == 535 && release >= 43
            && release < 98
        ? sizeof(struct nvml_process_detail)
        : sizeof(struct nvml_process_info);
}

/* `stride` 0: that of the third version. */
static nvmlReturn_t processes(const char *function, unsigned mode, size_t stride, nvmlDevice_t device,
                              unsigned *count, void *infos)
{
    struct call call;
    nvmlReturn_t result = call_begin_device(&call, function, device);
    if (result == NVML_SUCCESS && (!count || (*count && !infos)))
        result = NVML_ERROR_INVALID_ARGUMENT;
    if (result == NVML_SUCCESS) {
        struct list list = {
            .infos = infos, .stride = stride ? stride : stride_v3(call.node), .room = infos ? *count : 0};
        add_mode(&call, mode, &list);
        *count = list.count;
        if (list.count > list.room)
            result = NVML_ERROR_INSUFFICIENT_SIZE;
    }
    return call_end(&call, result);
}

EXPORT nvmlReturn_t nvmlDeviceGetComputeRunningProcesses(nvmlDevice_t device, unsigned *count,
                                                         struct nvml_process_info_v1 *infos)
{
    return processes(__func__, NVML_PROCESSES_COMPUTE, sizeof *infos, device, count, infos);
}

EXPORT nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t device, unsigned *count,
                                                            struct nvml_process_info *infos)
{
    return processes(__func__, NVML_PROCESSES_COMPUTE, sizeof *infos, device, count, infos);
}

EXPORT nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned *count,
                                                            struct nvml_process_info *infos)
{
    return processes(__func__, NVML_PROCESSES_COMPUTE, 0, device, count, infos);
}

EXPORT nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses(nvmlDevice_t device, unsigned *count,
                                                          struct nvml_process_info_v1 *infos)
{
    return processes(__func__, NVML_PROCESSES_GRAPHICS, sizeof *infos, device, count, infos);
}

EXPORT nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v2(nvmlDevice_t device, unsigned *count,
                                                             struct nvml_process_info *infos)
{
    return processes(__func__, NVML_PROCESSES_GRAPHICS, sizeof *infos, device, count, infos);
}

EXPORT nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice_t device, unsigned *count,
                                                             struct nvml_process_info *infos)
{
    return processes(__func__, NVML_PROCESSES_GRAPHICS, 0, device, count, infos);
}

EXPORT nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses(nvmlDevice_t device, unsigned *count,
                                                            struct nvml_process_info_v1 *infos)
{
    return processes(__func__, NVML_PROCESSES_MPS, sizeof *infos, device, count, infos);
}

EXPORT nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses_v2(nvmlDevice_t device, unsigned *count,
                                                               struct nvml_process_info *infos)
{
    return processes(__func__, NVML_PROCESSES_MPS, sizeof *infos, device, count, infos);
}

EXPORT nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses_v3(nvmlDevice_t device, unsigned *count,
                                                               struct nvml_process_info *infos)
{
    return processes(__func__, NVML_PROCESSES_MPS, 0, device, count, infos);
}

EXPORT nvmlReturn_t nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t device,
                                                          struct nvml_process_detail_list *list)
{
    struct call call;
    nvmlReturn_t result = call_begin_device(&call, __func__, device);
    call_end(&call, result);
    if (result != NVML_SUCCESS)
        return result;
    if (!list || list->version != NVML_PROCESS_DETAIL_LIST_V1 || list->mode > NVML_PROCESSES_ALL)
        return NVML_ERROR_INVALID_ARGUMENT;
    return processes(__func__, list->mode, sizeof *list->details, device, &list->count, list->details);
}

/* Looks at the machine, as the real one does, not at who uses a GPU. */
EXPORT nvmlReturn_t nvmlSystemGetProcessName(unsigned pid, char *name, unsigned length)
{
    struct call call;
    char path[64], text[1024] = "";
    nvmlReturn_t result = call_begin(&call, __func__);
    if (result == NVML_SUCCESS && !name)
        result = NVML_ERROR_INVALID_ARGUMENT;
    if (result == NVML_SUCCESS) {
        snprintf(path, sizeof path, "/proc/%u/cmdline", pid);
        FILE *file = fopen(path, "re");
        size_t read = file ? fread(text, 1, sizeof text - 1, file) : 0;
        if (file)
            fclose(file);
        result = read ? copy_string(text, name, length) : NVML_ERROR_NOT_FOUND;
    }
    return call_end(&call, result);
}

static uint64_t now_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
}

/* The next process from `*index` on that works on the GPU, NULL at the end. */
static const struct sim_process *next_busy(const struct call *call, size_t *index)
{
    while (*index < call->node->process_count) {
        const struct sim_process *process = &call->node->processes[(*index)++];
        if (process->gpu == call->position && process->sm_percent != 0)
            return process;
    }
    return NULL;
}

static nvmlReturn_t found_of(unsigned found, unsigned room)
{
    return found == 0 ? NVML_ERROR_NOT_FOUND : found > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device,
                                                    struct nvml_process_utilization *samples, unsigned *count,
                                                    unsigned long long last_seen_us)
{
    struct call call;
    const struct sim_process *process;
    nvmlReturn_t result = call_begin_device(&call, __func__, device);
    if (result == NVML_SUCCESS && !count)
        result = NVML_ERROR_INVALID_ARGUMENT;
    if (result != NVML_SUCCESS)
        return call_end(&call, result);
    unsigned room = samples ? *count : 0, found = 0;
    bool seen = last_seen_us > now_us(); /* every sample is of now */
    for (size_t i = 0; !seen && (process = next_busy(&call, &i)); found++)
        if (found < room)
            samples[found] = (struct nvml_process_utilization){
                .pid = process->pid, .time_stamp_us = now_us(), .sm_percent = process->sm_percent};
    *count = found;
    return call_end(&call, found_of(found, room));
}

EXPORT nvmlReturn_t nvmlDeviceGetProcessesUtilizationInfo(nvmlDevice_t device,
                                                          struct nvml_processes_utilization *all)
{
    struct call call;
    const struct sim_process *process;
    nvmlReturn_t result = call_begin_device(&call, __func__, device);
    if (result == NVML_SUCCESS && !all)
        result = NVML_ERROR_INVALID_ARGUMENT;
    if (result == NVML_SUCCESS && all->version != NVML_PROCESSES_UTILIZATION_V1)
        result = NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    if (result != NVML_SUCCESS)
        return call_end(&call, result);
    unsigned room = all->infos ? all->count : 0, found = 0;
    for (size_t i = 0; (process = next_busy(&call, &i)); found++)
        if (found < room)
            all->infos[found] = (struct nvml_process_utilization_info){
                .time_stamp_us = now_us(), .pid = process->pid, .sm_percent = process->sm_percent};
    all->count = found;
    return call_end(&call, found_of(found, room));
}

/* One sample, of now: no buffer is kept here. */
EXPORT nvmlReturn_t nvmlDeviceGetSamples(nvmlDevice_t device, int type, unsigned long long last_seen_us,
                                         int *value_type, unsigned *count, struct nvml_sample *samples)
{
    (void)last_seen_us;
    struct call call;
    nvmlReturn_t result = call_begin_device(&call, __func__, device);
    if (result == NVML_SUCCESS && (!value_type || !count || (samples && !*count)))
        result = NVML_ERROR_INVALID_ARGUMENT;
    if (result == NVML_SUCCESS && type != NVML_SAMPLES_GPU && type != NVML_SAMPLES_MEMORY)
        result = NVML_ERROR_NOT_SUPPORTED;
    if (result != NVML_SUCCESS)
        return call_end(&call, result);
    *value_type = NVML_VALUE_UNSIGNED;
    *count = 1;
    if (samples)
        *samples = (struct nvml_sample){.time_stamp_us = now_us(),
                                        .value[0] = type == NVML_SAMPLES_GPU ? call.gpu->gpu_percent
                                                                             : call.gpu->memory_percent};
    return call_end(&call, result);
}

/* The window for the host is as large as the memory, and closed. */
EXPORT nvmlReturn_t nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t device, struct nvml_bar1_memory *memory)
{
    struct call call;
    nvmlReturn_t result = call_begin_device(&call, __func__, device);
    if (result == NVML_SUCCESS && !memory)
        result = NVML_ERROR_INVALID_ARGUMENT;
    if (result == NVML_SUCCESS && call.gpu->memory_mib == UNKNOWN)
        result = NVML_ERROR_NOT_SUPPORTED;
    if (result == NVML_SUCCESS)
        *memory = (struct nvml_bar1_memory){.total = (uint64_t)call.gpu->memory_mib * MIB,
                                            .free = (uint64_t)call.gpu->memory_mib * MIB};
    return call_end(&call, result);
}
