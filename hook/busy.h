/* How busy the container keeps a device: noted about once a second while it computes, so that who asks is
 * told at once. The notes are in the usage region, for all processes. So is each process's own part, in its
 * slot, for monitors.
 */
#ifndef VGPU_BUSY_H
#define VGPU_BUSY_H

#include "region.h"

#include <stdbool.h>

/* What this process is shown to use of a device. */
struct busy_shown {
    int64_t due_ns; /* charged, and not shown yet */
    uint64_t at_ns; /* until when it is shown; CLOCK_MONOTONIC */
};

/* This process has been charged so much GPU time since the last call; less than 0: so much too much in all.
 * It is shown about once a second, and what was charged ahead, as a long kernel is, as it passes.
 * Whether there is more to show in a second: otherwise a figure would stand that is past. By one thread at a
 * time for each place. */
bool busy_charged(struct busy_shown *shown, int place, int64_t charged_ns);

/* GPU time charged of late, and in how long: one second to one minute until now. */
uint64_t busy_ns(struct region_device *device, uint64_t *window_ns);

#endif
