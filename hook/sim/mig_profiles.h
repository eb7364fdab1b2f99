/* Which GPU instances the simulated models can be divided into, as NVIDIA's MIG user guide lists them. */
#ifndef VGPU_SIM_MIG_PROFILES_H
#define VGPU_SIM_MIG_PROFILES_H

#include "node.h"

struct mig_profile {
    unsigned number; /* NVML_GPU_INSTANCE_PROFILE_... */
    unsigned id; /* by which NVML creates one */
    const char *name;
    unsigned slices, multiprocessors, memory_mib;
    unsigned size; /* memory slices */
    unsigned instances; /* at most */
    unsigned starts; /* a bit for each memory slice at which one may begin */
    unsigned copy_engines, decoders, jpeg, ofa;
};

struct mig_model {
    const char *name; /* part of the product name */
    long least_memory_mib;
    unsigned memory_slices;
    const struct mig_profile *profiles;
    size_t count;
};

/* NULL: the GPU cannot be divided, as far as the simulation knows. */
const struct mig_model *sim_mig_model(const struct sim_gpu *gpu);

/* NULL: the model has no such profile. */
const struct mig_profile *sim_mig_profile(const struct mig_model *model, unsigned number);
const struct mig_profile *sim_mig_profile_by_id(const struct mig_model *model, unsigned id);

/* Compute slices of a compute instance profile (NVML_COMPUTE_INSTANCE_PROFILE_...), 0: there is none. */
unsigned sim_mig_compute_slices(unsigned profile);

/* The id of the GPU instance at this place; the driver counts from the largest to the smallest. */
unsigned sim_mig_instance_id(const struct mig_model *model, unsigned start, unsigned size);

#endif
