/* Simulated NVML: GPU instances are made, found and destroyed. */
#include "nvml_mig_handles.h"

#include <string.h>

struct instance_wish {
    const struct sim_gpu *gpu;
    const struct mig_profile *profile;
    bool anywhere;
    unsigned start, id;
};

/* As many as there may be of a kind, none of them over another: 4g and 3g fit, 3g, 3g and 1g do not. */
static bool fits(const struct mig_state *state, const struct instance_wish *wish, unsigned start)
{
    unsigned same = 0, slices = wish->profile->slices;
    const struct mig_model *model = sim_mig_model(wish->gpu);
    for (size_t i = 0; i < state->gpu_instance_count; i++) {
        const struct mig_gpu_instance *other = &state->gpu_instances[i];
        if (strcmp(other->uuid, wish->gpu->uuid) != 0)
            continue;
        const struct mig_profile *profile = sim_mig_profile(model, other->profile);
        same += other->profile == wish->profile->number;
        slices += profile ? profile->slices : 0;
        if (start < other->start + other->size && other->start < start + wish->profile->size)
            return false;
    }
    return same < wish->profile->instances && slices <= (model->memory_slices == 8 ? 7 : 4);
}

static nvmlReturn_t make_gpu_instance(struct mig_state *state, void *argument)
{
    struct instance_wish *wish = argument;
    if (wish->anywhere)
        for (wish->start = 0; wish->start < 32; wish->start++)
            if (wish->profile->starts >> wish->start & 1 && fits(state, wish, wish->start))
                break;
    if (wish->start >= 32 || !fits(state, wish, wish->start))
        return NVML_ERROR_INSUFFICIENT_RESOURCES;
    if (state->gpu_instance_count == MAX_GPU_INSTANCES)
        return NVML_ERROR_MEMORY;
    wish->id = sim_mig_instance_id(sim_mig_model(wish->gpu), wish->start, wish->profile->size);
    struct mig_gpu_instance *fresh = &state->gpu_instances[state->gpu_instance_count++];
    *fresh = (struct mig_gpu_instance){
        .id = wish->id, .profile = wish->profile->number, .start = wish->start, .size = wish->profile->size};
    memcpy(fresh->uuid, wish->gpu->uuid, TEXT_BYTES);
    return NVML_SUCCESS;
}

static nvmlReturn_t create(const char *function, nvmlDevice_t device, unsigned profile_id,
                           const struct nvml_placement *placement, nvmlGpuInstance_t *instance)
{
    struct call call;
    nvmlReturn_t result = begin_divided(&call, function, device);
    if (result == NVML_SUCCESS && !instance)
        result = NVML_ERROR_INVALID_ARGUMENT;
    struct instance_wish wish = {.anywhere = !placement, .start = placement ? placement->start : 0};
    if (result == NVML_SUCCESS) {
        wish.gpu = call.gpu;
        wish.profile = sim_mig_profile_by_id(sim_mig_model(call.gpu), profile_id);
        if (!wish.profile)
            result = NVML_ERROR_NOT_SUPPORTED;
        else if (placement
                 && (placement->start >= 32 || !(wish.profile->starts >> placement->start & 1)
                     || placement->size != wish.profile->size))
            result = NVML_ERROR_INVALID_ARGUMENT;
    }
    if (result == NVML_SUCCESS)
        result = mig_state_change(make_gpu_instance, &wish);
    if (result == NVML_SUCCESS)
        *instance = gpu_instance_handle(call.gpu->uuid, wish.id);
    return call_end(&call, result);
}

EXPORT nvmlReturn_t nvmlDeviceCreateGpuInstance(nvmlDevice_t device, unsigned profile_id,
                                                nvmlGpuInstance_t *instance)
{
    return create(__func__, device, profile_id, NULL, instance);
}

EXPORT nvmlReturn_t nvmlDeviceCreateGpuInstanceWithPlacement(nvmlDevice_t device, unsigned profile_id,
                                                             const struct nvml_placement *placement,
                                                             nvmlGpuInstance_t *instance)
{
    if (!placement)
        return NVML_ERROR_INVALID_ARGUMENT;
    return create(__func__, device, profile_id, placement, instance);
}

static nvmlReturn_t end_gpu_instance(struct mig_state *state, void *argument)
{
    const struct mig_place *place = argument;
    struct mig_gpu_instance *one = mig_gpu_instance_of(state, place->uuid, place->gpu_instance);
    if (!one)
        return NVML_ERROR_NOT_FOUND;
    for (size_t i = 0; i < state->compute_instance_count; i++)
        if (state->compute_instances[i].gpu_instance == place->gpu_instance
            && strcmp(state->compute_instances[i].uuid, place->uuid) == 0)
            return NVML_ERROR_IN_USE;
    *one = state->gpu_instances[--state->gpu_instance_count];
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlGpuInstanceDestroy(nvmlGpuInstance_t instance)
{
    struct call call;
    struct mig_place place;
    nvmlReturn_t result = begin_gpu_instance(&call, __func__, instance, &place);
    if (result == NVML_SUCCESS)
        result = mig_state_change(end_gpu_instance, &place);
    return call_end(&call, result);
}

static nvmlReturn_t list_gpu_instances(struct mig_state *state, void *argument)
{
    struct look *look = argument;
    const struct mig_profile *profile = sim_mig_profile_by_id(look->model, look->profile_id);
    for (size_t i = 0; profile && i < state->gpu_instance_count; i++) {
        const struct mig_gpu_instance *one = &state->gpu_instances[i];
        if (one->profile == profile->number && strcmp(one->uuid, look->uuid) == 0)
            look->instances[look->count++] = gpu_instance_handle(one->uuid, one->id);
    }
    return profile ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

/* `instances` must have room for as many as the profile allows, as the reference demands. */
EXPORT nvmlReturn_t nvmlDeviceGetGpuInstances(nvmlDevice_t device, unsigned profile_id,
                                              nvmlGpuInstance_t *instances, unsigned *count)
{
    struct call call;
    nvmlReturn_t result = begin_divided(&call, __func__, device);
    if (result == NVML_SUCCESS && (!count || !instances))
        result = NVML_ERROR_INVALID_ARGUMENT;
    if (result == NVML_SUCCESS) {
        struct look look = look_of(&call, 0);
        look.profile_id = profile_id;
        look.instances = instances;
        result = mig_state_look(list_gpu_instances, &look);
        *count = look.count;
    }
    return call_end(&call, result);
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceById(nvmlDevice_t device, unsigned id,
                                                 nvmlGpuInstance_t *instance)
{
    struct call call;
    nvmlReturn_t result = begin_divided(&call, __func__, device);
    if (result == NVML_SUCCESS && !instance)
        result = NVML_ERROR_INVALID_ARGUMENT;
    if (result == NVML_SUCCESS) {
        struct look look = look_of(&call, id);
        result = mig_state_look(find_gpu_instance, &look);
        if (result == NVML_SUCCESS)
            *instance = gpu_instance_handle(call.gpu->uuid, id);
    }
    return call_end(&call, result);
}

EXPORT nvmlReturn_t nvmlGpuInstanceGetInfo(nvmlGpuInstance_t instance, struct nvml_gpu_instance_info *info)
{
    struct call call;
    struct mig_place place;
    nvmlReturn_t result = begin_gpu_instance(&call, __func__, instance, &place);
    if (result == NVML_SUCCESS && !info)
        result = NVML_ERROR_INVALID_ARGUMENT;
    if (result == NVML_SUCCESS) {
        struct look look = look_of(&call, place.gpu_instance);
        result = mig_state_look(find_gpu_instance, &look);
        if (result == NVML_SUCCESS)
            *info = (struct nvml_gpu_instance_info){.device = handle_of(call.gpu->uuid),
                                                    .id = place.gpu_instance,
                                                    .profile_id = look.profile->id,
                                                    .placement = {look.found.start, look.found.size}};
    }
    return call_end(&call, result);
}
