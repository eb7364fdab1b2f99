#include "nvml_call.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

enum { MAX_HANDLES = 1024 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct nvmlDevice_st handles[MAX_HANDLES];
static size_t handle_count;
static unsigned init_count;
static nvmlDevice_t gpus[MAX_GPUS]; /* as nvmlInit found them */
static size_t gpu_count;

static nvmlDevice_t handle_of_locked(const char *uuid)
{
    for (size_t i = 0; i < handle_count; i++)
        if (strcmp(handles[i].uuid, uuid) == 0)
            return &handles[i];
    if (handle_count == MAX_HANDLES)
        return NULL;
    snprintf(handles[handle_count].uuid, TEXT_BYTES, "%s", uuid);
    return &handles[handle_count++];
}

nvmlDevice_t handle_of(const char *uuid)
{
    pthread_mutex_lock(&lock);
    nvmlDevice_t handle = handle_of_locked(uuid);
    pthread_mutex_unlock(&lock);
    return handle;
}

nvmlDevice_t enumerated(const struct sim_node *node, size_t index)
{
    int positions[MAX_GPUS];
    size_t count = node->fixed_enumeration ? 0 : sim_node_visible(node, positions);
    pthread_mutex_lock(&lock);
    nvmlDevice_t handle = NULL;
    if (node->fixed_enumeration && index < gpu_count)
        handle = gpus[index];
    else if (index < count)
        handle = handle_of_locked(node->gpus[positions[index]].uuid);
    pthread_mutex_unlock(&lock);
    return handle;
}

static bool initialised(void)
{
    pthread_mutex_lock(&lock);
    bool yes = init_count > 0;
    pthread_mutex_unlock(&lock);
    return yes;
}

/* Hold the configuration, once it does not say "hang". */
static const struct sim_node *acquire_when_alive(void)
{
    const struct timespec pause = {.tv_nsec = 20 * 1000 * 1000};
    while (true) {
        const struct sim_node *node = sim_node_acquire();
        if (!node || !node->hang)
            return node;
        sim_node_release(node);
        nanosleep(&pause, NULL);
    }
}

static nvmlReturn_t begin(struct call *call, const char *function)
{
    *call = (struct call){.node = acquire_when_alive(), .position = -1};
    if (!call->node || call->node->driver == DRIVER_ABSENT)
        return NVML_ERROR_DRIVER_NOT_LOADED;
    if (call->node->driver == DRIVER_MISMATCH)
        return NVML_ERROR_LIB_RM_VERSION_MISMATCH;
    return (nvmlReturn_t)sim_node_failure(call->node, function, -1);
}

nvmlReturn_t call_begin_init(struct call *call, const char *function)
{
    nvmlReturn_t result = begin(call, function);
    return result == NVML_SUCCESS ? (nvmlReturn_t)sim_node_failure(call->node, "nvmlInit", -1) : result;
}

nvmlReturn_t call_begin(struct call *call, const char *function)
{
    if (initialised())
        return begin(call, function);
    *call = (struct call){.position = -1};
    return NVML_ERROR_UNINITIALIZED;
}

static void find_device(struct call *call, const char *uuid)
{
    for (size_t i = 0; i < call->node->gpu_count; i++) {
        const struct sim_gpu *gpu = &call->node->gpus[i];
        bool found = strcmp(gpu->uuid, uuid) == 0;
        for (size_t j = 0; !found && j < MAX_MIGS; j++)
            if (gpu->migs[j].present && strcmp(gpu->migs[j].uuid, uuid) == 0)
                call->mig = &gpu->migs[j];
        if (found || call->mig) {
            call->gpu = gpu;
            call->position = (int)i;
            return;
        }
    }
}

nvmlReturn_t call_begin_device(struct call *call, const char *function, nvmlDevice_t device)
{
    nvmlReturn_t result = call_begin(call, function);
    if (result != NVML_SUCCESS)
        return result;
    if (device < handles || device >= handles + MAX_HANDLES || device->uuid[0] == '\0')
        return NVML_ERROR_INVALID_ARGUMENT;
    find_device(call, device->uuid);
    if (!call->gpu || call->gpu->lost)
        return NVML_ERROR_GPU_IS_LOST;
    return (nvmlReturn_t)sim_node_failure(call->node, function, call->position);
}

nvmlReturn_t call_end(struct call *call, nvmlReturn_t result)
{
    sim_node_release(call->node);
    return result;
}

static void enumerate_locked(const struct sim_node *node)
{
    int positions[MAX_GPUS];
    gpu_count = sim_node_visible(node, positions);
    for (size_t i = 0; i < gpu_count; i++)
        gpus[i] = handle_of_locked(node->gpus[positions[i]].uuid);
}

EXPORT nvmlReturn_t nvmlInitWithFlags(unsigned flags)
{
    (void)flags;
    if (!initialised())
        sim_node_look_again();
    struct call call;
    nvmlReturn_t result = call_begin_init(&call, __func__);
    if (result == NVML_SUCCESS) {
        pthread_mutex_lock(&lock);
        if (init_count++ == 0)
            enumerate_locked(call.node);
        pthread_mutex_unlock(&lock);
    }
    return call_end(&call, result);
}

EXPORT nvmlReturn_t nvmlInit_v2(void)
{
    return nvmlInitWithFlags(0);
}

EXPORT nvmlReturn_t nvmlInit(void)
{
    return nvmlInitWithFlags(0);
}

EXPORT nvmlReturn_t nvmlShutdown(void)
{
    struct call call;
    nvmlReturn_t result = call_begin(&call, __func__);
    if (result != NVML_ERROR_UNINITIALIZED) { /* one can leave a driver that is no longer there */
        pthread_mutex_lock(&lock);
        if (init_count > 0)
            init_count--;
        pthread_mutex_unlock(&lock);
        result = NVML_SUCCESS;
    }
    return call_end(&call, result);
}

nvmlReturn_t copy_string(const char *from, char *to, unsigned length)
{
    if (!to)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (strlen(from) >= length)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    memcpy(to, from, strlen(from) + 1);
    return NVML_SUCCESS;
}

void fill_pci(const char *bus_id, struct nvml_pci_info *pci)
{
    unsigned function = 0;
    memset(pci, 0, sizeof *pci);
    sscanf(bus_id, "%8x:%2x:%2x.%1x", &pci->domain, &pci->bus, &pci->device, &function);
    snprintf(pci->bus_id, sizeof pci->bus_id, "%08X:%02X:%02X.%X", pci->domain, pci->bus & 0xFF,
             pci->device & 0xFF, function & 0xF);
    snprintf(pci->bus_id_legacy, sizeof pci->bus_id_legacy, "%04X:%02X:%02X.%X", pci->domain & 0xFFFF,
             pci->bus & 0xFF, pci->device & 0xFF, function & 0xF);
    pci->pci_device_id = 0x223510DEu; /* any NVIDIA part; who needs the model reads the name */
}
