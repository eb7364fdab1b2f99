/* Simulated NVML: compute instances are made in GPU instances, found and destroyed. */
#include "memory.h"
#include "nvml_mig_handles.h"

#include <stdio.h>
#include <string.h>

static nvmlReturn_t compute_profile_info(const char *function, nvmlGpuInstance_t instance, unsigned number,
                                         unsigned engine, struct nvml_compute_instance_profile *info)
{
    struct call call;
    struct look look = {0};
    struct mig_place place;
    nvmlReturn_t result = begin_gpu_instance(&call, function, instance, &place);
    if (result == NVML_SUCCESS && engine != 0)
        result = NVML_ERROR_INVALID_ARGUMENT;
    if (result == NVML_SUCCESS) {
        look = look_of(&call, place.gpu_instance);
        result = mig_state_look(find_gpu_instance, &look);
    }
    unsigned slices = sim_mig_compute_slices(number);
    if (result == NVML_SUCCESS && (slices == 0 || slices > look.profile->slices))
        result = NVML_ERROR_NOT_SUPPORTED;
    if (result == NVML_SUCCESS)
        *info = (struct nvml_compute_instance_profile){.id = number,
                                                       .slices = slices,
                                                       .instances = look.profile->slices / slices,
                                                       .multiprocessors = look.profile->multiprocessors
                                                           * slices / look.profile->slices,
                                                       .copy_engines = look.profile->copy_engines,
                                                       .decoders = look.profile->decoders,
                                                       .jpeg = look.profile->jpeg,
                                                       .ofa = look.profile->ofa};
    return call_end(&call, result);
}

EXPORT nvmlReturn_t nvmlGpuInstanceGetComputeInstanceProfileInfo(nvmlGpuInstance_t instance, unsigned number,
                                                                 unsigned engine,
                                                                 struct nvml_compute_instance_profile *info)
{
    return info ? compute_profile_info(__func__, instance, number, engine, info)
                : NVML_ERROR_INVALID_ARGUMENT;
}

EXPORT nvmlReturn_t
nvmlGpuInstanceGetComputeInstanceProfileInfoV(nvmlGpuInstance_t instance, unsigned number, unsigned engine,
                                              struct nvml_compute_instance_profile_v2 *info)
{
    struct nvml_compute_instance_profile first;
    if (!info)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (info->version != NVML_COMPUTE_INSTANCE_PROFILE_V2)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    nvmlReturn_t result = compute_profile_info(__func__, instance, number, engine, &first);
    if (result != NVML_SUCCESS)
        return result;
    memcpy(&info->id, &first, sizeof first); /* the same fields, after the version */
    snprintf(info->name, sizeof info->name, "MIG %uc", first.slices);
    return result;
}

struct compute_wish {
    const struct sim_gpu *gpu;
    unsigned gpu_instance, profile, id;
};

static nvmlReturn_t make_compute_instance(struct mig_state *state, void *argument)
{
    struct compute_wish *wish = argument;
    const struct mig_gpu_instance *gi = mig_gpu_instance_of(state, wish->gpu->uuid, wish->gpu_instance);
    const struct mig_profile *profile = gi ? sim_mig_profile(sim_mig_model(wish->gpu), gi->profile) : NULL;
    unsigned slices = sim_mig_compute_slices(wish->profile), taken = 0;
    if (!profile)
        return NVML_ERROR_NOT_FOUND;
    if (slices == 0 || slices > profile->slices)
        return NVML_ERROR_NOT_SUPPORTED;
    for (size_t i = 0; i < state->compute_instance_count; i++)
        if (state->compute_instances[i].gpu_instance == gi->id
            && strcmp(state->compute_instances[i].uuid, gi->uuid) == 0)
            taken += sim_mig_compute_slices(state->compute_instances[i].profile);
    if (taken + slices > profile->slices)
        return NVML_ERROR_INSUFFICIENT_RESOURCES;
    if (state->compute_instance_count == MAX_COMPUTE_INSTANCES)
        return NVML_ERROR_MEMORY;
    while (mig_compute_instance_of(state, gi->uuid, gi->id, wish->id))
        wish->id++;
    struct mig_compute_instance *fresh = &state->compute_instances[state->compute_instance_count++];
    *fresh = (struct mig_compute_instance){.gpu_instance = gi->id, .id = wish->id, .profile = wish->profile};
    memcpy(fresh->uuid, gi->uuid, TEXT_BYTES);
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlGpuInstanceCreateComputeInstance(nvmlGpuInstance_t instance, unsigned profile_id,
                                                         nvmlComputeInstance_t *compute_instance)
{
    struct call call;
    struct mig_place place;
    nvmlReturn_t result = begin_gpu_instance(&call, __func__, instance, &place);
    if (result == NVML_SUCCESS && !compute_instance)
        result = NVML_ERROR_INVALID_ARGUMENT;
    if (result == NVML_SUCCESS) {
        struct compute_wish wish = {
            .gpu = call.gpu, .gpu_instance = place.gpu_instance, .profile = profile_id};
        result = mig_state_change(make_compute_instance, &wish);
        if (result == NVML_SUCCESS)
            *compute_instance = compute_instance_handle(call.gpu->uuid, wish.gpu_instance, wish.id);
    }
    return call_end(&call, result);
}

static bool in_use(const struct call *call, const struct mig_place *place)
{
    struct sim_share share;
    char uuid[TEXT_BYTES];
    mig_device_uuid(place->uuid, place->gpu_instance, place->id, uuid);
    for (size_t i = 0; i < call->node->process_count; i++) {
        const struct sim_process *process = &call->node->processes[i];
        if (process->gpu == call->position && process->gpu_instance == place->gpu_instance
            && process->compute_instance == place->id)
            return true;
    }
    return sim_memory_shares(uuid, &share, 1) > 0;
}

static nvmlReturn_t end_compute_instance(struct mig_state *state, void *argument)
{
    const struct mig_place *place = argument;
    struct mig_compute_instance *one =
        mig_compute_instance_of(state, place->uuid, place->gpu_instance, place->id);
    if (!one)
        return NVML_ERROR_NOT_FOUND;
    *one = state->compute_instances[--state->compute_instance_count];
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlComputeInstanceDestroy(nvmlComputeInstance_t instance)
{
    struct call call;
    struct mig_place place;
    nvmlReturn_t result = begin_compute_instance(&call, __func__, instance, &place);
    if (result == NVML_SUCCESS && in_use(&call, &place))
        result = NVML_ERROR_IN_USE;
    if (result == NVML_SUCCESS)
        result = mig_state_change(end_compute_instance, &place);
    return call_end(&call, result);
}

static nvmlReturn_t find_compute_instance(struct mig_state *state, void *argument)
{
    struct look *look = argument;
    const struct mig_compute_instance *one =
        mig_compute_instance_of(state, look->uuid, look->gpu_instance, look->id);
    if (!one)
        return NVML_ERROR_NOT_FOUND;
    look->found_compute = *one;
    return find_gpu_instance(state, look);
}

static nvmlReturn_t list_compute_instances(struct mig_state *state, void *argument)
{
    struct look *look = argument;
    nvmlReturn_t result = find_gpu_instance(state, look);
    for (size_t i = 0; result == NVML_SUCCESS && i < state->compute_instance_count; i++) {
        const struct mig_compute_instance *one = &state->compute_instances[i];
        if (one->profile == look->profile_id && one->gpu_instance == look->gpu_instance
            && strcmp(one->uuid, look->uuid) == 0)
            look->compute_instances[look->count++] =
                compute_instance_handle(one->uuid, one->gpu_instance, one->id);
    }
    return result;
}

EXPORT nvmlReturn_t nvmlGpuInstanceGetComputeInstances(nvmlGpuInstance_t instance, unsigned profile_id,
                                                       nvmlComputeInstance_t *found, unsigned *count)
{
    struct call call;
    struct mig_place place;
    nvmlReturn_t result = begin_gpu_instance(&call, __func__, instance, &place);
    if (result == NVML_SUCCESS && (!count || !found))
        result = NVML_ERROR_INVALID_ARGUMENT;
    if (result == NVML_SUCCESS) {
        struct look look = look_of(&call, place.gpu_instance);
        look.profile_id = profile_id;
        look.compute_instances = found;
        result = mig_state_look(list_compute_instances, &look);
        *count = look.count;
    }
    return call_end(&call, result);
}

EXPORT nvmlReturn_t nvmlGpuInstanceGetComputeInstanceById(nvmlGpuInstance_t instance, unsigned id,
                                                          nvmlComputeInstance_t *found)
{
    struct call call;
    struct mig_place place;
    nvmlReturn_t result = begin_gpu_instance(&call, __func__, instance, &place);
    if (result == NVML_SUCCESS && !found)
        result = NVML_ERROR_INVALID_ARGUMENT;
    if (result == NVML_SUCCESS) {
        struct look look = look_of(&call, place.gpu_instance);
        look.id = id;
        result = mig_state_look(find_compute_instance, &look);
        if (result == NVML_SUCCESS)
            *found = compute_instance_handle(call.gpu->uuid, place.gpu_instance, id);
    }
    return call_end(&call, result);
}

EXPORT nvmlReturn_t nvmlComputeInstanceGetInfo_v2(nvmlComputeInstance_t instance,
                                                  struct nvml_compute_instance_info *info)
{
    struct call call;
    struct mig_place place;
    nvmlReturn_t result = begin_compute_instance(&call, __func__, instance, &place);
    if (result == NVML_SUCCESS && !info)
        result = NVML_ERROR_INVALID_ARGUMENT;
    if (result == NVML_SUCCESS) {
        struct look look = look_of(&call, place.gpu_instance);
        look.id = place.id;
        result = mig_state_look(find_compute_instance, &look);
        if (result == NVML_SUCCESS)
            *info = (struct nvml_compute_instance_info){
                .device = handle_of(call.gpu->uuid),
                .gpu_instance = gpu_instance_handle(call.gpu->uuid, place.gpu_instance),
                .id = place.id,
                .profile_id = look.found_compute.profile,
                .placement = {place.id, sim_mig_compute_slices(look.found_compute.profile)}};
    }
    return call_end(&call, result);
}
