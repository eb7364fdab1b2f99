/* Simulated NVML: MIG devices, listed and named. They come and go with the instances that
 * nvml_mig_instances.c and nvml_compute_instances.c make. */
#include "nvml_call.h"

EXPORT nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned *current, unsigned *pending)
{
    struct call call;
    nvmlReturn_t result = call_begin_device(&call, __func__, device);
    if (result == NVML_SUCCESS && (!current || !pending))
        result = NVML_ERROR_INVALID_ARGUMENT;
    if (result == NVML_SUCCESS && call.gpu->cc_major < 8)
        result = NVML_ERROR_NOT_SUPPORTED; /* older than Ampere: no MIG at all */
    if (result == NVML_SUCCESS) {
        *current = call.gpu->mig;
        *pending = call.gpu->pending_mig;
    }
    return call_end(&call, result);
}

EXPORT nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned *count)
{
    struct call call;
    nvmlReturn_t result = call_begin_device(&call, __func__, device);
    if (result == NVML_SUCCESS && !count)
        result = NVML_ERROR_INVALID_ARGUMENT;
    if (result == NVML_SUCCESS)
        *count = call.gpu->mig ? 7 : 0;
    return call_end(&call, result);
}

EXPORT nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned index,
                                                        nvmlDevice_t *mig)
{
    struct call call;
    nvmlReturn_t result = call_begin_device(&call, __func__, device);
    if (result == NVML_SUCCESS && (!mig || call.mig))
        result = NVML_ERROR_INVALID_ARGUMENT;
    if (result == NVML_SUCCESS && !call.gpu->mig)
        result = NVML_ERROR_NOT_SUPPORTED;
    if (result == NVML_SUCCESS
        && (index >= MAX_MIGS || !call.gpu->migs[index].present
            || !sim_node_shows(call.node, call.position, call.gpu->migs[index].uuid)))
        result = NVML_ERROR_NOT_FOUND; /* positions may have holes */
    if (result == NVML_SUCCESS)
        *mig = handle_of(call.gpu->migs[index].uuid);
    return call_end(&call, result);
}

EXPORT nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t mig, nvmlDevice_t *device)
{
    struct call call;
    nvmlReturn_t result = call_begin_device(&call, __func__, mig);
    if (result == NVML_SUCCESS && (!device || !call.mig))
        result = NVML_ERROR_INVALID_ARGUMENT;
    if (result == NVML_SUCCESS)
        *device = handle_of(call.gpu->uuid);
    return call_end(&call, result);
}

EXPORT nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t device, unsigned *is_mig)
{
    struct call call;
    nvmlReturn_t result = call_begin_device(&call, __func__, device);
    if (result == NVML_SUCCESS && !is_mig)
        result = NVML_ERROR_INVALID_ARGUMENT;
    if (result == NVML_SUCCESS)
        *is_mig = call.mig != NULL;
    return call_end(&call, result);
}

static nvmlReturn_t instance(const char *function, nvmlDevice_t mig, unsigned *id, bool compute)
{
    struct call call;
    nvmlReturn_t result = call_begin_device(&call, function, mig);
    if (result == NVML_SUCCESS && (!id || !call.mig))
        result = NVML_ERROR_INVALID_ARGUMENT;
    if (result == NVML_SUCCESS)
        *id = compute ? call.mig->compute_instance : call.mig->gpu_instance;
    return call_end(&call, result);
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceId(nvmlDevice_t mig, unsigned *id)
{
    return instance(__func__, mig, id, false);
}

EXPORT nvmlReturn_t nvmlDeviceGetComputeInstanceId(nvmlDevice_t mig, unsigned *id)
{
    return instance(__func__, mig, id, true);
}

EXPORT nvmlReturn_t nvmlDeviceGetAttributes_v2(nvmlDevice_t mig, struct nvml_device_attributes *attributes)
{
    struct call call;
    nvmlReturn_t result = call_begin_device(&call, __func__, mig);
    if (result == NVML_SUCCESS && (!attributes || !call.mig))
        result = NVML_ERROR_INVALID_ARGUMENT;
    if (result == NVML_SUCCESS)
        *attributes = (struct nvml_device_attributes){.multiprocessor_count = call.mig->multiprocessors,
                                                      .gpu_instance_slices = call.mig->slices,
                                                      .compute_instance_slices = call.mig->compute_slices,
                                                      .memory_mib = call.mig->memory_mib};
    return call_end(&call, result);
}
