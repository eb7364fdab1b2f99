/* What a pool is asked of the driver, which calls of its own these are. Thread safe. */
#ifndef VGPU_POOL_DRIVER_H
#define VGPU_POOL_DRIVER_H

#include "cuda_abi.h"

#include <stdbool.h>

/* Managed memory, and what a release to come may have on a device. `kind`: of allocations. */
bool pool_may_be_anywhere(const CUmemLocation *location, int kind);

/* The device of a pool that was not seen being made, POOL_NOT_COUNTED (pool_accounts.h) where it is of other
 * memory. One that may be anywhere is counted where it is first used; as is what a driver does not tell
 * about, unless it is a device's own. */
CUdevice pool_ask_device(CUmemoryPool handle, CUdevice first_used);

/* Bytes that the driver has reserved for it. False when it does not tell, but has before. 0 where it never
 * does: then what is live is charged. */
bool pool_ask_reserved(CUmemoryPool handle, cuuint64_t *reserved);

/* Have the driver give back what nothing of it uses. */
void pool_trim(CUmemoryPool handle);

/* The device's own pool takes the place of the one that ends, or else the driver has that take it when it
 * does. False for one that is not counted, and for the own one itself, of which the driver destroys none. */
bool pool_step_down(CUmemoryPool handle, CUdevice device);

#endif
