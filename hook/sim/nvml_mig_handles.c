/* Simulated NVML: handles of GPU and compute instances. */
#include "nvml_mig_handles.h"

#include <pthread.h>
#include <string.h>

enum { MAX_PLACES = 8192 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct mig_place places[MAX_PLACES];

static struct mig_place *place_at(const char *uuid, bool computes, unsigned gpu_instance, unsigned id)
{
    struct mig_place *found = NULL;
    pthread_mutex_lock(&lock);
    for (size_t i = 0; !found && i < MAX_PLACES; i++) {
        struct mig_place *one = &places[i];
        if (one->uuid[0] == '\0') {
            *one = (struct mig_place){.computes = computes, .gpu_instance = gpu_instance, .id = id};
            memcpy(one->uuid, uuid, TEXT_BYTES);
        }
        if (one->computes == computes && one->gpu_instance == gpu_instance && one->id == id
            && strcmp(one->uuid, uuid) == 0)
            found = one;
    }
    pthread_mutex_unlock(&lock);
    return found;
}

nvmlGpuInstance_t gpu_instance_handle(const char *uuid, unsigned gpu_instance)
{
    return (nvmlGpuInstance_t)place_at(uuid, false, gpu_instance, 0);
}

nvmlComputeInstance_t compute_instance_handle(const char *uuid, unsigned gpu_instance, unsigned id)
{
    return (nvmlComputeInstance_t)place_at(uuid, true, gpu_instance, id);
}

nvmlReturn_t begin_divided(struct call *call, const char *function, nvmlDevice_t device)
{
    nvmlReturn_t result = call_begin_device(call, function, device);
    if (result == NVML_SUCCESS && call->mig)
        result = NVML_ERROR_INVALID_ARGUMENT;
    if (result == NVML_SUCCESS && (!sim_mig_model(call->gpu) || !call->gpu->mig))
        result = NVML_ERROR_NOT_SUPPORTED;
    return result;
}

static nvmlReturn_t begin_at(struct call *call, const char *function, const void *handle, bool computes,
                             struct mig_place *place)
{
    const struct mig_place *one = handle;
    if (one < places || one >= places + MAX_PLACES || !one->uuid[0] || one->computes != computes) {
        nvmlReturn_t result = call_begin(call, function);
        return result == NVML_SUCCESS ? NVML_ERROR_INVALID_ARGUMENT : result;
    }
    *place = *one;
    return begin_divided(call, function, handle_of(place->uuid));
}

nvmlReturn_t begin_gpu_instance(struct call *call, const char *function, nvmlGpuInstance_t instance,
                                struct mig_place *place)
{
    return begin_at(call, function, instance, false, place);
}

nvmlReturn_t begin_compute_instance(struct call *call, const char *function, nvmlComputeInstance_t instance,
                                    struct mig_place *place)
{
    return begin_at(call, function, instance, true, place);
}

struct look look_of(const struct call *call, unsigned gpu_instance)
{
    return (struct look){
        .uuid = call->gpu->uuid, .model = sim_mig_model(call->gpu), .gpu_instance = gpu_instance};
}

nvmlReturn_t find_gpu_instance(struct mig_state *state, void *argument)
{
    struct look *look = argument;
    const struct mig_gpu_instance *one = mig_gpu_instance_of(state, look->uuid, look->gpu_instance);
    if (!one)
        return NVML_ERROR_NOT_FOUND;
    look->found = *one;
    look->profile = sim_mig_profile(look->model, one->profile);
    return look->profile ? NVML_SUCCESS : NVML_ERROR_NOT_FOUND;
}
