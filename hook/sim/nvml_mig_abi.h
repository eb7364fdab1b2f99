/* The part of NVML that divides GPUs and limits cgroups, as far as it is simulated. */
#ifndef VGPU_SIM_NVML_MIG_ABI_H
#define VGPU_SIM_NVML_MIG_ABI_H

#include "../nvml_abi.h"

typedef struct nvmlGpuInstance_st *nvmlGpuInstance_t; /* opaque, as in the vendor's header */
typedef struct nvmlComputeInstance_st *nvmlComputeInstance_t;

struct nvml_placement {
    unsigned start, size;
};

struct nvml_gpu_instance_profile {
    unsigned id, p2p, slices, instances, multiprocessors, copy_engines, decoders, encoders, jpeg, ofa;
    unsigned long long memory_mib;
};

struct nvml_gpu_instance_profile_v2 {
    unsigned version, id, p2p, slices, instances, multiprocessors, copy_engines, decoders, encoders, jpeg,
        ofa;
    unsigned long long memory_mib;
    char name[NVML_NAME_BYTES];
};

struct nvml_compute_instance_profile {
    unsigned id, slices, instances, multiprocessors, copy_engines, decoders, encoders, jpeg, ofa;
};

struct nvml_compute_instance_profile_v2 {
    unsigned version, id, slices, instances, multiprocessors, copy_engines, decoders, encoders, jpeg, ofa;
    char name[NVML_NAME_BYTES];
};

struct nvml_gpu_instance_info {
    nvmlDevice_t device;
    unsigned id, profile_id;
    struct nvml_placement placement;
};

struct nvml_compute_instance_info {
    nvmlDevice_t device;
    nvmlGpuInstance_t gpu_instance;
    unsigned id, profile_id;
    struct nvml_placement placement;
};

/* Limits of device memory for a cgroup, r615 and later. */
struct nvml_set_memory_limits {
    const char *cgroup;
    unsigned long long soft_bytes, hard_bytes;
};

struct nvml_get_memory_limits {
    const char *cgroup;
    unsigned long long soft_bytes, hard_bytes, used_bytes;
};
#define NVML_MEMORY_LIMIT_MAX 0xFFFFFFFFFFFFFFFFULL

nvmlReturn_t nvmlDeviceSetMemoryLimits_v1(nvmlDevice_t device, struct nvml_set_memory_limits *limits);
nvmlReturn_t nvmlDeviceGetMemoryLimits_v1(nvmlDevice_t device, struct nvml_get_memory_limits *limits);

#define NVML_GPU_INSTANCE_PROFILE_V2 ((unsigned)sizeof(struct nvml_gpu_instance_profile_v2) | (2u << 24))
#define NVML_COMPUTE_INSTANCE_PROFILE_V2                                                                     \
    ((unsigned)sizeof(struct nvml_compute_instance_profile_v2) | (2u << 24))

_Static_assert(sizeof(struct nvml_gpu_instance_profile) == 48, "nvmlGpuInstanceProfileInfo_t");
_Static_assert(NVML_GPU_INSTANCE_PROFILE_V2 == 0x02000098, "nvmlGpuInstanceProfileInfo_v2");
_Static_assert(NVML_COMPUTE_INSTANCE_PROFILE_V2 == 0x02000088, "nvmlComputeInstanceProfileInfo_v2");
_Static_assert(sizeof(struct nvml_gpu_instance_info) == 24, "nvmlGpuInstanceInfo_t");

nvmlReturn_t nvmlDeviceSetMigMode(nvmlDevice_t device, unsigned mode, nvmlReturn_t *activation);
nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfo(nvmlDevice_t device, unsigned number,
                                                 struct nvml_gpu_instance_profile *info);
nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfoV(nvmlDevice_t device, unsigned number,
                                                  struct nvml_gpu_instance_profile_v2 *info);
nvmlReturn_t nvmlDeviceGetGpuInstancePossiblePlacements_v2(nvmlDevice_t device, unsigned profile_id,
                                                           struct nvml_placement *placements,
                                                           unsigned *count);
nvmlReturn_t nvmlDeviceCreateGpuInstance(nvmlDevice_t device, unsigned profile_id,
                                         nvmlGpuInstance_t *instance);
nvmlReturn_t nvmlDeviceCreateGpuInstanceWithPlacement(nvmlDevice_t device, unsigned profile_id,
                                                      const struct nvml_placement *placement,
                                                      nvmlGpuInstance_t *instance);
nvmlReturn_t nvmlGpuInstanceDestroy(nvmlGpuInstance_t instance);
nvmlReturn_t nvmlDeviceGetGpuInstances(nvmlDevice_t device, unsigned profile_id, nvmlGpuInstance_t *instances,
                                       unsigned *count);
nvmlReturn_t nvmlDeviceGetGpuInstanceById(nvmlDevice_t device, unsigned id, nvmlGpuInstance_t *instance);
nvmlReturn_t nvmlGpuInstanceGetInfo(nvmlGpuInstance_t instance, struct nvml_gpu_instance_info *info);
nvmlReturn_t nvmlGpuInstanceGetComputeInstanceProfileInfo(nvmlGpuInstance_t instance, unsigned number,
                                                          unsigned engine,
                                                          struct nvml_compute_instance_profile *info);
nvmlReturn_t nvmlGpuInstanceGetComputeInstanceProfileInfoV(nvmlGpuInstance_t instance, unsigned number,
                                                           unsigned engine,
                                                           struct nvml_compute_instance_profile_v2 *info);
nvmlReturn_t nvmlGpuInstanceCreateComputeInstance(nvmlGpuInstance_t instance, unsigned profile_id,
                                                  nvmlComputeInstance_t *compute_instance);
nvmlReturn_t nvmlComputeInstanceDestroy(nvmlComputeInstance_t instance);
nvmlReturn_t nvmlGpuInstanceGetComputeInstances(nvmlGpuInstance_t instance, unsigned profile_id,
                                                nvmlComputeInstance_t *found, unsigned *count);
nvmlReturn_t nvmlGpuInstanceGetComputeInstanceById(nvmlGpuInstance_t instance, unsigned id,
                                                   nvmlComputeInstance_t *found);
nvmlReturn_t nvmlComputeInstanceGetInfo_v2(nvmlComputeInstance_t instance,
                                           struct nvml_compute_instance_info *info);

#endif
