/* Simulated CUDA driver: memory pools. A pool reserves memory of the GPU in steps and keeps what is freed;
 * what it holds beyond its release threshold and does not use goes back when the program synchronises. What
 * is freed in a stream with work is that stream's until it has come there, and others' only where the GPU is
 * full, as by CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES; that who gets it then waits for the other
 * stream, and that events order streams, is left out. Thread safe.
 */
#ifndef VGPU_SIM_POOLS_H
#define VGPU_SIM_POOLS_H

#include "../cuda_abi.h"
#include "cuda_call.h"

#include <pthread.h>
#include <stdbool.h>

/* Called by every function that waits for the GPU: stream, event and context synchronisation. */
void sim_pools_synchronised(void);

/* Give an address back to its pool. False: it is not from a pool. */
bool sim_pools_free(CUdeviceptr address);

/* --- between the pools and what is allocated from them; called with the lock held ----------------------- */

enum { POOL_GRANULE = 512 };

struct CUmemPoolHandle_st {
    struct CUmemPoolHandle_st *next;
    char uuid[TEXT_BYTES];
    CUdevice device; /* of a pool of other memory: the first one */
    CUmemLocation location;
    int kind; /* CUmemAllocationType */
    bool on_host, imported, destroyed;
    uint64_t step_bytes, threshold_bytes;
    uint64_t used, used_high, reserved, reserved_high;
    struct pool_pending *pending;
};

/* Bytes that were freed in streams which have not come to that yet: they stay reserved. */
uint64_t sim_pool_pending(CUmemoryPool pool);

extern pthread_mutex_t sim_pools_lock;

bool sim_pool_known(CUmemoryPool pool);

/* What the device's streams allocate from; NULL when there is no memory for it. */
CUmemoryPool sim_pool_current(const struct cuda_call *call, CUdevice device);

uint64_t sim_pool_stepped(const struct CUmemPoolHandle_st *pool, uint64_t bytes);

/* A destroyed pool goes with the last that was allocated from it, when that is free. */
void sim_pool_discard_if_done(CUmemoryPool pool);
void sim_pools_discard(void);

#endif
