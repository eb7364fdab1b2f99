/* Which devices of NVML the hook has something to tell about. A MIG device has a place of its own, by its
 * uuid, which its GPU has as well. Thread safe. */
#ifndef VGPU_NVML_PLACE_H
#define VGPU_NVML_PLACE_H

#include "real.h"

/* The place of a device in the usage region; -1 when the driver's own answer is to stand. */
int nvml_place(const struct real_nvml *real, nvmlDevice_t device);

/* The same, but also -1 for a device whose memory is not limited. */
int nvml_place_limited(const struct real_nvml *real, nvmlDevice_t device);

#endif
