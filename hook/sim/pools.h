/* Simulated CUDA driver: memory pools. A pool reserves memory of the GPU in steps and keeps what is freed;
 * what it holds beyond its release threshold and does not use goes back when the program synchronises. Thread
 * safe.
 */
#ifndef VGPU_SIM_POOLS_H
#define VGPU_SIM_POOLS_H

#include "../cuda_abi.h"

#include <stdbool.h>

/* Called by every function that waits for the GPU: stream, event and context synchronisation. */
void sim_pools_synchronised(void);

/* Give an address back to its pool. False: it is not from a pool. */
bool sim_pools_free(CUdeviceptr address);

#endif
