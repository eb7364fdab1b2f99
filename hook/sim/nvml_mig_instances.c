/* Simulated NVML: GPU instances and compute instances are made, found and destroyed. */
#include "memory.h"
#include "mig_profiles.h"
#include "mig_state.h"
#include "nvml_call.h"
#include "nvml_mig_abi.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

enum { MAX_INSTANCE_HANDLES = 4096 };

/* Handles stand for a place: they say that it is empty when what was there is gone. */
struct nvmlGpuInstance_st {
    char uuid[TEXT_BYTES]; /* of the GPU; empty: the handle is not used */
    unsigned id;
};

struct nvmlComputeInstance_st {
    char uuid[TEXT_BYTES];
    unsigned gpu_instance, id;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct nvmlGpuInstance_st gpu_instances[MAX_INSTANCE_HANDLES];
static struct nvmlComputeInstance_st compute_instances[MAX_INSTANCE_HANDLES];

static nvmlGpuInstance_t gpu_instance_handle(const char *uuid, unsigned id)
{
    nvmlGpuInstance_t found = NULL;
    pthread_mutex_lock(&lock);
    for (size_t i = 0; !found && i < MAX_INSTANCE_HANDLES; i++) {
        struct nvmlGpuInstance_st *one = &gpu_instances[i];
        if (one->uuid[0] == '\0') {
            memcpy(one->uuid, uuid, TEXT_BYTES);
            one->id = id;
        }
        if (one->id == id && strcmp(one->uuid, uuid) == 0)
            found = one;
    }
    pthread_mutex_unlock(&lock);
    return found;
}

static nvmlComputeInstance_t compute_instance_handle(const char *uuid, unsigned gpu_instance, unsigned id)
{
    nvmlComputeInstance_t found = NULL;
    pthread_mutex_lock(&lock);
    for (size_t i = 0; !found && i < MAX_INSTANCE_HANDLES; i++) {
        struct nvmlComputeInstance_st *one = &compute_instances[i];
        if (one->uuid[0] == '\0') {
            memcpy(one->uuid, uuid, TEXT_BYTES);
            one->gpu_instance = gpu_instance;
            one->id = id;
        }
        if (one->gpu_instance == gpu_instance && one->id == id && strcmp(one->uuid, uuid) == 0)
            found = one;
    }
    pthread_mutex_unlock(&lock);
    return found;
}

/* --- beginning -------------------------------------------------------------------------------------------
 */

static nvmlReturn_t begin_divided(struct call *call, const char *function, nvmlDevice_t device)
{
    nvmlReturn_t result = call_begin_device(call, function, device);
    if (result == NVML_SUCCESS && call->mig)
        result = NVML_ERROR_INVALID_ARGUMENT;
    if (result == NVML_SUCCESS && (!sim_mig_model(call->gpu) || !call->gpu->mig))
        result = NVML_ERROR_NOT_SUPPORTED;
    return result;
}

static nvmlReturn_t begin_at(struct call *call, const char *function, const char *uuid)
{
    return begin_divided(call, function, handle_of(uuid));
}

static nvmlReturn_t begin_gpu_instance(struct call *call, const char *function, nvmlGpuInstance_t instance)
{
    if (instance < gpu_instances || instance >= gpu_instances + MAX_INSTANCE_HANDLES || !instance->uuid[0]) {
        nvmlReturn_t result = call_begin(call, function);
        return result == NVML_SUCCESS ? NVML_ERROR_INVALID_ARGUMENT : result;
    }
    return begin_at(call, function, instance->uuid);
}

static nvmlReturn_t begin_compute_instance(struct call *call, const char *function,
                                           nvmlComputeInstance_t instance)
{
    if (instance < compute_instances || instance >= compute_instances + MAX_INSTANCE_HANDLES
        || !instance->uuid[0]) {
        nvmlReturn_t result = call_begin(call, function);
        return result == NVML_SUCCESS ? NVML_ERROR_INVALID_ARGUMENT : result;
    }
    return begin_at(call, function, instance->uuid);
}

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

/* --- GPU instances ---------------------------------------------------------------------------------------
 */

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
    nvmlGpuInstance_t instance = argument;
    struct mig_gpu_instance *one = mig_gpu_instance_of(state, instance->uuid, instance->id);
    if (!one)
        return NVML_ERROR_NOT_FOUND;
    for (size_t i = 0; i < state->compute_instance_count; i++)
        if (state->compute_instances[i].gpu_instance == instance->id
            && strcmp(state->compute_instances[i].uuid, instance->uuid) == 0)
            return NVML_ERROR_IN_USE;
    *one = state->gpu_instances[--state->gpu_instance_count];
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlGpuInstanceDestroy(nvmlGpuInstance_t instance)
{
    struct call call;
    nvmlReturn_t result = begin_gpu_instance(&call, __func__, instance);
    if (result == NVML_SUCCESS)
        result = mig_state_change(end_gpu_instance, instance);
    return call_end(&call, result);
}

/* What one wants to see of the state; read anew each time, so that what was just made is seen. */
struct look {
    nvmlReturn_t (*at)(struct mig_state *state, struct look *look);
    const char *uuid;
    unsigned gpu_instance, id, profile_id, count, room;
    const struct mig_model *model;
    const struct mig_profile *profile; /* of the GPU instance */
    struct mig_gpu_instance found;
    struct mig_compute_instance found_compute;
    nvmlGpuInstance_t *instances;
    nvmlComputeInstance_t *compute_instances;
};

static nvmlReturn_t find_gpu_instance(struct mig_state *state, struct look *look)
{
    const struct mig_gpu_instance *one = mig_gpu_instance_of(state, look->uuid, look->gpu_instance);
    if (!one)
        return NVML_ERROR_NOT_FOUND;
    look->found = *one;
    look->profile = sim_mig_profile(look->model, one->profile);
    return look->profile ? NVML_SUCCESS : NVML_ERROR_NOT_FOUND;
}

static nvmlReturn_t list_gpu_instances(struct mig_state *state, struct look *look)
{
    const struct mig_profile *profile = sim_mig_profile_by_id(look->model, look->profile_id);
    for (size_t i = 0; profile && i < state->gpu_instance_count; i++) {
        const struct mig_gpu_instance *one = &state->gpu_instances[i];
        if (one->profile == profile->number && strcmp(one->uuid, look->uuid) == 0)
            look->instances[look->count++] = gpu_instance_handle(one->uuid, one->id);
    }
    return profile ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

static nvmlReturn_t look_at(struct mig_state *state, void *argument)
{
    struct look *look = argument;
    return look->at(state, look);
}

static nvmlReturn_t look_once(struct look *look)
{
    return mig_state_look(look_at, look);
}

/* `room` must be for as many as the profile allows, as the reference demands. */
EXPORT nvmlReturn_t nvmlDeviceGetGpuInstances(nvmlDevice_t device, unsigned profile_id,
                                              nvmlGpuInstance_t *instances, unsigned *count)
{
    struct call call;
    nvmlReturn_t result = begin_divided(&call, __func__, device);
    if (result == NVML_SUCCESS && (!count || !instances))
        result = NVML_ERROR_INVALID_ARGUMENT;
    if (result == NVML_SUCCESS) {
        struct look look = {.at = list_gpu_instances,
                            .uuid = call.gpu->uuid,
                            .model = sim_mig_model(call.gpu),
                            .profile_id = profile_id,
                            .instances = instances};
        result = look_once(&look);
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
        struct look look = {.at = find_gpu_instance,
                            .uuid = call.gpu->uuid,
                            .model = sim_mig_model(call.gpu),
                            .gpu_instance = id};
        result = look_once(&look);
        if (result == NVML_SUCCESS)
            *instance = gpu_instance_handle(call.gpu->uuid, id);
    }
    return call_end(&call, result);
}

static nvmlReturn_t look_into(struct call *call, nvmlGpuInstance_t instance, struct look *look)
{
    *look = (struct look){.at = find_gpu_instance,
                          .uuid = call->gpu->uuid,
                          .model = sim_mig_model(call->gpu),
                          .gpu_instance = instance->id};
    return look_once(look);
}

EXPORT nvmlReturn_t nvmlGpuInstanceGetInfo(nvmlGpuInstance_t instance, struct nvml_gpu_instance_info *info)
{
    struct call call;
    struct look look;
    nvmlReturn_t result = begin_gpu_instance(&call, __func__, instance);
    if (result == NVML_SUCCESS && !info)
        result = NVML_ERROR_INVALID_ARGUMENT;
    if (result == NVML_SUCCESS)
        result = look_into(&call, instance, &look);
    if (result == NVML_SUCCESS)
        *info = (struct nvml_gpu_instance_info){.device = handle_of(call.gpu->uuid),
                                                .id = instance->id,
                                                .profile_id = look.profile->id,
                                                .placement = {look.found.start, look.found.size}};
    return call_end(&call, result);
}

/* --- compute instances -----------------------------------------------------------------------------------
 */

static nvmlReturn_t compute_profile_info(const char *function, nvmlGpuInstance_t instance, unsigned number,
                                         unsigned engine, struct nvml_compute_instance_profile *info)
{
    struct call call;
    struct look look;
    nvmlReturn_t result = begin_gpu_instance(&call, function, instance);
    if (result == NVML_SUCCESS && engine != 0)
        result = NVML_ERROR_INVALID_ARGUMENT;
    if (result == NVML_SUCCESS)
        result = look_into(&call, instance, &look);
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
    nvmlGpuInstance_t instance;
    const struct sim_gpu *gpu;
    unsigned profile, id;
};

static nvmlReturn_t make_compute_instance(struct mig_state *state, void *argument)
{
    struct compute_wish *wish = argument;
    const struct mig_gpu_instance *gi = mig_gpu_instance_of(state, wish->gpu->uuid, wish->instance->id);
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
    nvmlReturn_t result = begin_gpu_instance(&call, __func__, instance);
    if (result == NVML_SUCCESS && !compute_instance)
        result = NVML_ERROR_INVALID_ARGUMENT;
    struct compute_wish wish = {.instance = instance, .profile = profile_id};
    if (result == NVML_SUCCESS) {
        wish.gpu = call.gpu;
        result = mig_state_change(make_compute_instance, &wish);
    }
    if (result == NVML_SUCCESS)
        *compute_instance = compute_instance_handle(call.gpu->uuid, instance->id, wish.id);
    return call_end(&call, result);
}

static bool computes(const struct call *call, nvmlComputeInstance_t instance)
{
    struct sim_share share;
    char uuid[TEXT_BYTES];
    mig_device_uuid(instance->uuid, instance->gpu_instance, instance->id, uuid);
    for (size_t i = 0; i < call->node->process_count; i++) {
        const struct sim_process *process = &call->node->processes[i];
        if (process->gpu == call->position && process->gpu_instance == instance->gpu_instance
            && process->compute_instance == instance->id)
            return true;
    }
    return sim_memory_shares(uuid, &share, 1) > 0;
}

static nvmlReturn_t end_compute_instance(struct mig_state *state, void *argument)
{
    nvmlComputeInstance_t instance = argument;
    struct mig_compute_instance *one =
        mig_compute_instance_of(state, instance->uuid, instance->gpu_instance, instance->id);
    if (!one)
        return NVML_ERROR_NOT_FOUND;
    *one = state->compute_instances[--state->compute_instance_count];
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlComputeInstanceDestroy(nvmlComputeInstance_t instance)
{
    struct call call;
    nvmlReturn_t result = begin_compute_instance(&call, __func__, instance);
    if (result == NVML_SUCCESS && computes(&call, instance))
        result = NVML_ERROR_IN_USE;
    if (result == NVML_SUCCESS)
        result = mig_state_change(end_compute_instance, instance);
    return call_end(&call, result);
}

static nvmlReturn_t find_compute_instance(struct mig_state *state, struct look *look)
{
    const struct mig_compute_instance *one =
        mig_compute_instance_of(state, look->uuid, look->gpu_instance, look->id);
    if (!one)
        return NVML_ERROR_NOT_FOUND;
    look->found_compute = *one;
    return find_gpu_instance(state, look);
}

static nvmlReturn_t list_compute_instances(struct mig_state *state, struct look *look)
{
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
    nvmlReturn_t result = begin_gpu_instance(&call, __func__, instance);
    if (result == NVML_SUCCESS && (!count || !found))
        result = NVML_ERROR_INVALID_ARGUMENT;
    if (result == NVML_SUCCESS) {
        struct look look = {.at = list_compute_instances,
                            .uuid = call.gpu->uuid,
                            .model = sim_mig_model(call.gpu),
                            .gpu_instance = instance->id,
                            .profile_id = profile_id,
                            .compute_instances = found};
        result = look_once(&look);
        *count = look.count;
    }
    return call_end(&call, result);
}

EXPORT nvmlReturn_t nvmlGpuInstanceGetComputeInstanceById(nvmlGpuInstance_t instance, unsigned id,
                                                          nvmlComputeInstance_t *found)
{
    struct call call;
    nvmlReturn_t result = begin_gpu_instance(&call, __func__, instance);
    if (result == NVML_SUCCESS && !found)
        result = NVML_ERROR_INVALID_ARGUMENT;
    if (result == NVML_SUCCESS) {
        struct look look = {.at = find_compute_instance,
                            .uuid = call.gpu->uuid,
                            .model = sim_mig_model(call.gpu),
                            .gpu_instance = instance->id,
                            .id = id};
        result = look_once(&look);
        if (result == NVML_SUCCESS)
            *found = compute_instance_handle(call.gpu->uuid, instance->id, id);
    }
    return call_end(&call, result);
}

EXPORT nvmlReturn_t nvmlComputeInstanceGetInfo_v2(nvmlComputeInstance_t instance,
                                                  struct nvml_compute_instance_info *info)
{
    struct call call;
    nvmlReturn_t result = begin_compute_instance(&call, __func__, instance);
    if (result == NVML_SUCCESS && !info)
        result = NVML_ERROR_INVALID_ARGUMENT;
    if (result == NVML_SUCCESS) {
        struct look look = {.at = find_compute_instance,
                            .uuid = call.gpu->uuid,
                            .model = sim_mig_model(call.gpu),
                            .gpu_instance = instance->gpu_instance,
                            .id = instance->id};
        result = look_once(&look);
        if (result == NVML_SUCCESS)
            *info = (struct nvml_compute_instance_info){
                .device = handle_of(call.gpu->uuid),
                .gpu_instance = gpu_instance_handle(call.gpu->uuid, instance->gpu_instance),
                .id = instance->id,
                .profile_id = look.found_compute.profile,
                .placement = {instance->id, sim_mig_compute_slices(look.found_compute.profile)}};
    }
    return call_end(&call, result);
}
