/* Simulated CUDA driver: physical memory, between what makes and maps it (cuda_vmm.c) and what shows it to
 * several devices (cuda_multicast.c). All but vmm_begin are called with the lock held.
 */
#ifndef VGPU_SIM_VMM_H
#define VGPU_SIM_VMM_H

#include "cuda_call.h"
#include "memory.h"

struct physical {
    char uuid[TEXT_BYTES];
    uint64_t bytes;
    bool taken; /* of the GPU, by this process */
    struct sim_sharing *sharing; /* with other processes; NULL: nobody else has had it */
    int fd; /* that stands for it then */
    bool multicast;
    CUmemAllocationProp properties;
    unsigned users; /* handles, mappings and bindings */
};

struct handle {
    struct handle *next;
    CUmemGenericAllocationHandle value;
    struct physical *physical;
    unsigned references;
};

/* Where memory is seen: at an address, or at an offset of a multicast object. */
struct view {
    struct view *next;
    struct physical *physical, *multicast; /* multicast NULL: a mapping */
    uint64_t at, bytes;
};

extern struct view *vmm_views;

/* Begin a call: takes the lock; and end it. */
CUresult vmm_begin(struct cuda_call *call, const char *function);
CUresult vmm_end(struct cuda_call *call, CUresult result);

struct handle *vmm_find(CUmemGenericAllocationHandle value);
CUresult vmm_new_handle(struct physical *physical, CUmemGenericAllocationHandle *value);
CUresult vmm_new_view(struct physical *physical, struct physical *multicast, uint64_t at, uint64_t bytes);
void vmm_end_view(struct view **link);
struct view *vmm_mapped_at(uint64_t address);

#endif
