/* Which place of the shared region a CUDA device is counted in. Devices are known by uuid: their ordinals
 * depend on CUDA_VISIBLE_DEVICES and are not the scheduler's. Thread safe.
 */
#ifndef VGPU_DEVICES_H
#define VGPU_DEVICES_H

#include "cuda_abi.h"

/* -1 when the device has no place (not a device, or no room): nothing may be allocated on it. */
int place_of_device(CUdevice device);

/* The same for the device of the calling thread's context. Gives the driver's error when there is none. */
CUresult place_of_context(int *place);

/* The device that memory at the location is on; -1: on none, or on one that does not exist. */
CUdevice device_at(const CUmemLocation *location);

/* What an allocation comes to whose device the driver does not tell, and why. CUDA_SUCCESS where nothing can
 * be allocated: what that is called is the driver's to say. */
CUresult device_unknown(CUresult result);

#endif
