/* Handles of GPU and compute instances, and what the functions that take them do first.
 *
 * A handle stands for a place: it says that the place is empty when what was there is gone.
 */
#ifndef VGPU_SIM_NVML_MIG_HANDLES_H
#define VGPU_SIM_NVML_MIG_HANDLES_H

#include "mig_profiles.h"
#include "mig_state.h"
#include "nvml_call.h"
#include "nvml_mig_abi.h"

/* What both kinds of handles point to. */
struct mig_place {
    char uuid[TEXT_BYTES]; /* of the GPU; empty: the handle is not used */
    bool computes; /* a compute instance's */
    unsigned gpu_instance, id; /* of a GPU instance `id` is 0 */
};

/* Always the same one for the same place; NULL when the table is full. */
nvmlGpuInstance_t gpu_instance_handle(const char *uuid, unsigned gpu_instance);
nvmlComputeInstance_t compute_instance_handle(const char *uuid, unsigned gpu_instance, unsigned id);

/* As call_begin_device, for a GPU in MIG mode; `place` is where the handle stands for. */
nvmlReturn_t begin_divided(struct call *call, const char *function, nvmlDevice_t device);
nvmlReturn_t begin_gpu_instance(struct call *call, const char *function, nvmlGpuInstance_t instance,
                                struct mig_place *place);
nvmlReturn_t begin_compute_instance(struct call *call, const char *function, nvmlComputeInstance_t instance,
                                    struct mig_place *place);

/* What one wants to see of the state; read anew each time, so that what was just made is seen. */
struct look {
    const char *uuid;
    unsigned gpu_instance, id, profile_id, count;
    const struct mig_model *model;
    const struct mig_profile *profile; /* of the GPU instance */
    struct mig_gpu_instance found;
    struct mig_compute_instance found_compute;
    nvmlGpuInstance_t *instances;
    nvmlComputeInstance_t *compute_instances;
};

struct look look_of(const struct call *call, unsigned gpu_instance);
mig_change find_gpu_instance; /* the argument is a struct look */

#endif
