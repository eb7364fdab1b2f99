/* GPU and compute instances that were made through NVML: one small text file for all processes of the node.
 *
 * The file is `<configuration>.mig`; it is replaced as a whole under flock, so whoever is killed leaves the
 * old or the new one. Its lines, by uuid of the GPU:
 *
 *   mode GPU-... CURRENT PENDING
 *   gi GPU-... ID PROFILE-NUMBER START SIZE
 *   ci GPU-... GI ID PROFILE-NUMBER
 */
#ifndef VGPU_SIM_MIG_STATE_H
#define VGPU_SIM_MIG_STATE_H

#include "../nvml_abi.h"
#include "node.h"

enum { MAX_MODES = 64, MAX_GPU_INSTANCES = 512, MAX_COMPUTE_INSTANCES = 512 };
enum { NVML_ERROR_IN_USE = 19, NVML_ERROR_INSUFFICIENT_RESOURCES = 23 };

struct mig_mode {
    char uuid[TEXT_BYTES];
    unsigned current, pending;
};

struct mig_gpu_instance {
    char uuid[TEXT_BYTES];
    unsigned id, profile, start, size;
};

struct mig_compute_instance {
    char uuid[TEXT_BYTES]; /* of the GPU */
    unsigned gpu_instance, id, profile;
};

struct mig_state {
    size_t mode_count, gpu_instance_count, compute_instance_count;
    struct mig_mode modes[MAX_MODES];
    struct mig_gpu_instance gpu_instances[MAX_GPU_INSTANCES];
    struct mig_compute_instance compute_instances[MAX_COMPUTE_INSTANCES];
};

/* Let the node have the instances of the file beside this configuration. Total: what does not parse is left
 * out. */
void mig_state_apply(struct sim_node *node, const char *configuration);

/* Read, change, write, with nobody in between. What `change` refuses is not written. */
typedef nvmlReturn_t mig_change(struct mig_state *state, void *argument);
nvmlReturn_t mig_state_change(mig_change *change, void *argument);

/* Only look. */
nvmlReturn_t mig_state_look(mig_change *look, void *argument);

struct mig_mode *mig_mode_of(struct mig_state *state, const char *uuid);
struct mig_gpu_instance *mig_gpu_instance_of(struct mig_state *state, const char *uuid, unsigned id);
struct mig_compute_instance *mig_compute_instance_of(struct mig_state *state, const char *uuid,
                                                     unsigned gpu_instance, unsigned id);

/* The uuid of the MIG device: always the same for the same place of the same GPU, as the driver has it. */
void mig_device_uuid(const char *gpu_uuid, unsigned gpu_instance, unsigned compute_instance,
                     char uuid[TEXT_BYTES]);

#endif
