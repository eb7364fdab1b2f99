/* What every function of the simulated NVML does first: is NVML initialised, does the driver hang, is the
 * call to fail, does the handle name a GPU that answers. Thread safe.
 */
#ifndef VGPU_SIM_NVML_CALL_H
#define VGPU_SIM_NVML_CALL_H

#include "../nvml_abi.h"
#include "node.h"

#include <stdbool.h>
#include <stddef.h>

#define EXPORT __attribute__((visibility("default")))

/* A handle stands for a uuid, for the life of the process: it survives renumbering, as the real ones do. */
struct nvmlDevice_st {
    char uuid[TEXT_BYTES];
};

struct call {
    const struct sim_node *node;
    const struct sim_gpu *gpu; /* of the handle; for a MIG handle its parent */
    const struct sim_mig *mig; /* NULL unless the handle is a MIG device's */
    int position; /* of gpu in node->gpus */
};

/* Each begin must be followed by call_end with the call's answer, whatever begin itself answered. */
nvmlReturn_t call_begin(struct call *call, const char *function);
nvmlReturn_t call_begin_device(struct call *call, const char *function, nvmlDevice_t device);
nvmlReturn_t call_end(struct call *call, nvmlReturn_t result);

/* Before nvmlInit: waits while the driver hangs, then says whether there is one. */
nvmlReturn_t call_begin_init(struct call *call, const char *function);

/* The handle of a uuid, always the same one; NULL when the table is full. */
nvmlDevice_t handle_of(const char *uuid);

/* The GPU at this NVML index, NULL at or after the end. By default one that appears is listed at once; with
 * "enumeration fixed" not before another nvmlShutdown and nvmlInit. (What real drivers do depends on their
 * version; a program has to cope with both.) */
nvmlDevice_t enumerated(const struct sim_node *node, size_t index);

nvmlReturn_t copy_string(const char *from, char *to, unsigned length);
void fill_pci(const char *bus_id, struct nvml_pci_info *pci);

#endif
