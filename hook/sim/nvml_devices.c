/* Simulated NVML: the system, and what a GPU is called and where it sits. */
#include "mig_state.h"
#include "nvml_call.h"

#include <stdio.h>
#include <string.h>

EXPORT const char *nvmlErrorString(nvmlReturn_t result)
{
    switch (result) {
    case NVML_SUCCESS:
        return "Success";
    case NVML_ERROR_UNINITIALIZED:
        return "Uninitialized";
    case NVML_ERROR_INVALID_ARGUMENT:
        return "Invalid Argument";
    case NVML_ERROR_NOT_SUPPORTED:
        return "Not Supported";
    case NVML_ERROR_NO_PERMISSION:
        return "Insufficient Permissions";
    case NVML_ERROR_NOT_FOUND:
        return "Not Found";
    case NVML_ERROR_INSUFFICIENT_SIZE:
        return "Insufficient Size";
    case NVML_ERROR_DRIVER_NOT_LOADED:
        return "Driver Not Loaded";
    case NVML_ERROR_TIMEOUT:
        return "Timeout";
    case NVML_ERROR_FUNCTION_NOT_FOUND:
        return "Function Not Found";
    case NVML_ERROR_GPU_IS_LOST:
        return "GPU is lost";
    case NVML_ERROR_IN_USE:
        return "In use by another client";
    case NVML_ERROR_INSUFFICIENT_RESOURCES:
        return "Insufficient Resources";
    case NVML_ERROR_LIB_RM_VERSION_MISMATCH:
        return "Driver/library version mismatch";
    default:
        return "Unknown Error";
    }
}

EXPORT nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned length)
{
    struct call call;
    nvmlReturn_t result = call_begin(&call, __func__);
    if (result == NVML_SUCCESS)
        result = copy_string(call.node->driver_version, version, length);
    return call_end(&call, result);
}

EXPORT nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, unsigned length)
{
    struct call call;
    nvmlReturn_t result = call_begin(&call, __func__);
    char text[96];
    if (result == NVML_SUCCESS) {
        snprintf(text, sizeof text, "%d.%s", call.node->cuda_version / 1000, call.node->driver_version);
        result = copy_string(text, version, length);
    }
    return call_end(&call, result);
}

EXPORT nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version)
{
    struct call call;
    nvmlReturn_t result = call_begin(&call, __func__);
    if (result == NVML_SUCCESS && version)
        *version = call.node->cuda_version;
    return call_end(&call, version || result ? result : NVML_ERROR_INVALID_ARGUMENT);
}

EXPORT nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version)
{
    return nvmlSystemGetCudaDriverVersion_v2(version);
}

/* --- handles -------------------------------------------------------------------------------------------- */

EXPORT nvmlReturn_t nvmlDeviceGetCount_v2(unsigned *count)
{
    struct call call;
    nvmlReturn_t result = call_begin(&call, __func__);
    if (result == NVML_SUCCESS && !count)
        result = NVML_ERROR_INVALID_ARGUMENT;
    if (result == NVML_SUCCESS)
        for (*count = 0; enumerated(call.node, *count);)
            (*count)++;
    return call_end(&call, result);
}

EXPORT nvmlReturn_t nvmlDeviceGetCount(unsigned *count)
{
    return nvmlDeviceGetCount_v2(count);
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *device)
{
    struct call call;
    nvmlReturn_t result = call_begin(&call, __func__);
    nvmlDevice_t found = result == NVML_SUCCESS ? enumerated(call.node, index) : NULL;
    call_end(&call, result);
    if (result != NVML_SUCCESS)
        return result;
    if (!found || !device)
        return NVML_ERROR_INVALID_ARGUMENT;
    result = call_begin_device(&call, __func__, found); /* a lost GPU gives no handle */
    if (result == NVML_SUCCESS)
        *device = found;
    return call_end(&call, result);
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned index, nvmlDevice_t *device)
{
    return nvmlDeviceGetHandleByIndex_v2(index, device);
}

static bool is_mig_of(const struct sim_gpu *gpu, const char *uuid)
{
    for (size_t i = 0; i < MAX_MIGS; i++)
        if (gpu->migs[i].present && strcmp(gpu->migs[i].uuid, uuid) == 0)
            return true;
    return false;
}

static bool sits_at(const struct sim_gpu *gpu, const char *bus_id)
{
    struct nvml_pci_info wanted, pci;
    fill_pci(bus_id, &wanted);
    fill_pci(gpu->bus_id, &pci);
    return strcmp(wanted.bus_id, pci.bus_id) == 0;
}

static bool has_uuid(const struct sim_gpu *gpu, const char *uuid)
{
    return strcmp(gpu->uuid, uuid) == 0 || is_mig_of(gpu, uuid);
}

/* The enumerated GPU that `matches` the text, lost or not. */
static const struct sim_gpu *search(const struct call *call,
                                    bool (*matches)(const struct sim_gpu *, const char *), const char *text)
{
    nvmlDevice_t handle;
    for (size_t i = 0; (handle = enumerated(call->node, i)); i++) {
        int position = sim_node_find(call->node, handle->uuid);
        if (position >= 0 && matches(&call->node->gpus[position], text))
            return &call->node->gpus[position];
    }
    return NULL;
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device)
{
    struct call call;
    nvmlReturn_t result = call_begin(&call, __func__);
    if (result == NVML_SUCCESS && (!uuid || !device))
        result = NVML_ERROR_INVALID_ARGUMENT;
    if (result == NVML_SUCCESS) {
        const struct sim_gpu *gpu = search(&call, has_uuid, uuid);
        *device = gpu ? handle_of(uuid) : NULL;
        result = !gpu ? NVML_ERROR_NOT_FOUND : gpu->lost ? NVML_ERROR_GPU_IS_LOST : NVML_SUCCESS;
    }
    return call_end(&call, result);
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, nvmlDevice_t *device)
{
    struct call call;
    nvmlReturn_t result = call_begin(&call, __func__);
    if (result == NVML_SUCCESS && (!bus_id || !device))
        result = NVML_ERROR_INVALID_ARGUMENT;
    if (result == NVML_SUCCESS) {
        const struct sim_gpu *gpu = search(&call, sits_at, bus_id);
        *device = gpu ? handle_of(gpu->uuid) : NULL;
        result = !gpu ? NVML_ERROR_NOT_FOUND : gpu->lost ? NVML_ERROR_GPU_IS_LOST : NVML_SUCCESS;
    }
    return call_end(&call, result);
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char *bus_id, nvmlDevice_t *device)
{
    return nvmlDeviceGetHandleByPciBusId_v2(bus_id, device);
}

/* --- identity ------------------------------------------------------------------------------------------- */

EXPORT nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned length)
{
    struct call call;
    nvmlReturn_t result = call_begin_device(&call, __func__, device);
    if (result == NVML_SUCCESS)
        result = copy_string(device->uuid, uuid, length);
    return call_end(&call, result);
}

EXPORT nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned length)
{
    struct call call;
    nvmlReturn_t result = call_begin_device(&call, __func__, device);
    if (result == NVML_SUCCESS)
        result = copy_string(call.gpu->name, name, length);
    return call_end(&call, result);
}

EXPORT nvmlReturn_t nvmlDeviceGetSerial(nvmlDevice_t device, char *serial, unsigned length)
{
    struct call call;
    nvmlReturn_t result = call_begin_device(&call, __func__, device);
    if (result == NVML_SUCCESS)
        result = copy_string(call.gpu->serial, serial, length);
    return call_end(&call, result);
}

EXPORT nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned *index)
{
    struct call call;
    nvmlReturn_t result = call_begin_device(&call, __func__, device);
    if (result == NVML_SUCCESS && !index)
        result = NVML_ERROR_INVALID_ARGUMENT;
    if (result == NVML_SUCCESS) {
        result = NVML_ERROR_NOT_FOUND;
        nvmlDevice_t handle;
        for (unsigned i = 0; (handle = enumerated(call.node, i)); i++) {
            if (handle == device) {
                *index = i;
                result = NVML_SUCCESS;
            }
        }
    }
    return call_end(&call, result);
}

EXPORT nvmlReturn_t nvmlDeviceGetMinorNumber(nvmlDevice_t device, unsigned *minor_number)
{
    struct call call;
    nvmlReturn_t result = call_begin_device(&call, __func__, device);
    if (result == NVML_SUCCESS && !minor_number)
        result = NVML_ERROR_INVALID_ARGUMENT;
    if (result == NVML_SUCCESS)
        *minor_number = call.gpu->minor_number;
    return call_end(&call, result);
}

EXPORT nvmlReturn_t nvmlDeviceGetComputeMode(nvmlDevice_t device, unsigned *mode)
{
    struct call call;
    nvmlReturn_t result = call_begin_device(&call, __func__, device);
    if (result == NVML_SUCCESS && !mode)
        result = NVML_ERROR_INVALID_ARGUMENT;
    if (result == NVML_SUCCESS)
        *mode = call.gpu->compute_mode;
    return call_end(&call, result);
}

EXPORT nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, struct nvml_pci_info *pci)
{
    struct call call;
    nvmlReturn_t result = call_begin_device(&call, __func__, device);
    if (result == NVML_SUCCESS && !pci)
        result = NVML_ERROR_INVALID_ARGUMENT;
    if (result == NVML_SUCCESS)
        fill_pci(call.gpu->bus_id, pci);
    return call_end(&call, result);
}

EXPORT nvmlReturn_t nvmlDeviceGetNumaNodeId(nvmlDevice_t device, unsigned *node)
{
    struct call call;
    nvmlReturn_t result = call_begin_device(&call, __func__, device);
    if (result == NVML_SUCCESS && !node)
        result = NVML_ERROR_INVALID_ARGUMENT;
    if (result == NVML_SUCCESS && call.gpu->numa_node == UNKNOWN)
        result = NVML_ERROR_NOT_SUPPORTED;
    if (result == NVML_SUCCESS)
        *node = (unsigned)call.gpu->numa_node;
    return call_end(&call, result);
}

EXPORT nvmlReturn_t nvmlDeviceGetMemoryAffinity(nvmlDevice_t device, unsigned size, unsigned long *nodes,
                                                unsigned scope)
{
    (void)scope;
    struct call call;
    nvmlReturn_t result = call_begin_device(&call, __func__, device);
    if (result == NVML_SUCCESS && (!nodes || size == 0 || size > MAX_GPUS))
        result = NVML_ERROR_INVALID_ARGUMENT;
    if (result == NVML_SUCCESS && call.gpu->numa_node == UNKNOWN)
        result = NVML_ERROR_NOT_SUPPORTED;
    if (result == NVML_SUCCESS) {
        memset(nodes, 0, size * sizeof *nodes);
        unsigned word = (unsigned)call.gpu->numa_node / 64;
        if (word < size)
            nodes[word] = 1UL << (call.gpu->numa_node % 64);
    }
    return call_end(&call, result);
}

EXPORT nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor)
{
    struct call call;
    nvmlReturn_t result = call_begin_device(&call, __func__, device);
    if (result == NVML_SUCCESS && (!major || !minor))
        result = NVML_ERROR_INVALID_ARGUMENT;
    if (result == NVML_SUCCESS) {
        *major = (int)call.gpu->cc_major;
        *minor = (int)call.gpu->cc_minor;
    }
    return call_end(&call, result);
}
