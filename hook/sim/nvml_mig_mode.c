/* Simulated NVML: GPUs are put into MIG mode, and tell into what they can be divided. */
#include "memory.h"
#include "nvml_mig_handles.h"

#include <stdio.h>
#include <string.h>

/* --- the mode --------------------------------------------------------------------------------------------
 */

struct mode_wish {
    const struct call *call;
    unsigned mode;
    bool busy;
};

static bool used_by_processes(const struct call *call)
{
    struct sim_share share;
    for (size_t i = 0; i < call->node->process_count; i++)
        if (call->node->processes[i].gpu == call->position)
            return true;
    for (size_t i = 0; i < MAX_MIGS; i++)
        if (call->gpu->migs[i].present && sim_memory_shares(call->gpu->migs[i].uuid, &share, 1))
            return true;
    return sim_memory_shares(call->gpu->uuid, &share, 1) > 0;
}

static bool divided(struct mig_state *state, const char *uuid)
{
    for (size_t i = 0; i < state->gpu_instance_count; i++)
        if (strcmp(state->gpu_instances[i].uuid, uuid) == 0)
            return true;
    return false;
}

static nvmlReturn_t change_mode(struct mig_state *state, void *argument)
{
    struct mode_wish *wish = argument;
    const struct sim_gpu *gpu = wish->call->gpu;
    struct mig_mode *mode = mig_mode_of(state, gpu->uuid);
    if (!mode) {
        if (state->mode_count == MAX_MODES)
            return NVML_ERROR_MEMORY;
        mode = &state->modes[state->mode_count++];
        *mode = (struct mig_mode){.current = gpu->mig};
        memcpy(mode->uuid, gpu->uuid, TEXT_BYTES);
    }
    mode->pending = wish->mode;
    wish->busy = mode->current != wish->mode && (divided(state, gpu->uuid) || used_by_processes(wish->call));
    if (!wish->busy)
        mode->current = wish->mode;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceSetMigMode(nvmlDevice_t device, unsigned mode, nvmlReturn_t *activation)
{
    struct call call;
    nvmlReturn_t result = call_begin_device(&call, __func__, device);
    if (result == NVML_SUCCESS && (!activation || mode > 1 || call.mig))
        result = NVML_ERROR_INVALID_ARGUMENT;
    if (result == NVML_SUCCESS && !sim_mig_model(call.gpu))
        result = NVML_ERROR_NOT_SUPPORTED;
    if (result == NVML_SUCCESS) {
        struct mode_wish wish = {.call = &call, .mode = mode};
        result = mig_state_change(change_mode, &wish);
        *activation = wish.busy ? NVML_ERROR_IN_USE : result; /* pending until it is tried again */
    }
    return call_end(&call, result);
}

/* --- profiles --------------------------------------------------------------------------------------------
 */

static nvmlReturn_t profile_info(const char *function, nvmlDevice_t device, unsigned number,
                                 const struct mig_profile **profile)
{
    struct call call;
    nvmlReturn_t result = call_begin_device(&call, function, device);
    if (result == NVML_SUCCESS && call.mig)
        result = NVML_ERROR_INVALID_ARGUMENT;
    if (result == NVML_SUCCESS) {
        *profile = sim_mig_profile(sim_mig_model(call.gpu), number); /* the mode does not matter */
        result = *profile ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
    }
    return call_end(&call, result);
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfo(nvmlDevice_t device, unsigned number,
                                                        struct nvml_gpu_instance_profile *info)
{
    const struct mig_profile *profile = NULL;
    nvmlReturn_t result =
        info ? profile_info(__func__, device, number, &profile) : NVML_ERROR_INVALID_ARGUMENT;
    if (result == NVML_SUCCESS)
        *info = (struct nvml_gpu_instance_profile){.id = profile->id,
                                                   .slices = profile->slices,
                                                   .instances = profile->instances,
                                                   .multiprocessors = profile->multiprocessors,
                                                   .copy_engines = profile->copy_engines,
                                                   .decoders = profile->decoders,
                                                   .jpeg = profile->jpeg,
                                                   .ofa = profile->ofa,
                                                   .memory_mib = profile->memory_mib};
    return result;
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfoV(nvmlDevice_t device, unsigned number,
                                                         struct nvml_gpu_instance_profile_v2 *info)
{
    const struct mig_profile *profile = NULL;
    if (!info)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (info->version != NVML_GPU_INSTANCE_PROFILE_V2)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    nvmlReturn_t result = profile_info(__func__, device, number, &profile);
    if (result != NVML_SUCCESS)
        return result;
    *info = (struct nvml_gpu_instance_profile_v2){.version = NVML_GPU_INSTANCE_PROFILE_V2,
                                                  .id = profile->id,
                                                  .slices = profile->slices,
                                                  .instances = profile->instances,
                                                  .multiprocessors = profile->multiprocessors,
                                                  .copy_engines = profile->copy_engines,
                                                  .decoders = profile->decoders,
                                                  .jpeg = profile->jpeg,
                                                  .ofa = profile->ofa,
                                                  .memory_mib = profile->memory_mib};
    snprintf(info->name, sizeof info->name, "MIG %s", profile->name);
    return result;
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstancePossiblePlacements_v2(nvmlDevice_t device, unsigned profile_id,
                                                                  struct nvml_placement *placements,
                                                                  unsigned *count)
{
    struct call call;
    nvmlReturn_t result = begin_divided(&call, __func__, device);
    if (result == NVML_SUCCESS && !count)
        result = NVML_ERROR_INVALID_ARGUMENT;
    const struct mig_profile *profile =
        result == NVML_SUCCESS ? sim_mig_profile_by_id(sim_mig_model(call.gpu), profile_id) : NULL;
    if (result == NVML_SUCCESS && !profile)
        result = NVML_ERROR_NOT_SUPPORTED;
    unsigned found = 0, room = result == NVML_SUCCESS && placements ? *count : 0;
    for (unsigned start = 0; profile && start < 32; start++) {
        if (!(profile->starts >> start & 1))
            continue;
        if (found < room)
            placements[found] = (struct nvml_placement){.start = start, .size = profile->size};
        found++;
    }
    if (result == NVML_SUCCESS) {
        *count = found;
        result = placements && found > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
    }
    return call_end(&call, result);
}
