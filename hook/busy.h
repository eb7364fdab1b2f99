/* How busy the container keeps a device: noted about once a second while it computes, so that who asks is
 * told at once. The notes are in the usage region, for all processes.
 */
#ifndef VGPU_BUSY_H
#define VGPU_BUSY_H

#include "region.h"

/* GPU time has been charged. */
void busy_note(struct region_device *device);

/* GPU time charged of late, and in how long: one second to one minute until now. */
uint64_t busy_ns(struct region_device *device, uint64_t *window_ns);

#endif
