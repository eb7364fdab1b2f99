/* How much of a GPU's memory is in use, and how much of that by this process: as NVML says, where it can be
 * used, and what this process was charged meanwhile. Thread safe.
 */
#ifndef VGPU_FIGURES_H
#define VGPU_FIGURES_H

#include "real.h"

#include <stdbool.h>
#include <stdint.h>

enum { FIGURES_PIDS = 128 }; /* of more, nobody is told apart from who was there */

struct figures {
    uint64_t own, device; /* in use: by this process, by everybody */
    uint64_t come; /* by the largest process that was not there before; 0: there is none */
    uint64_t held_before, held_after; /* what this process was charged, around the question */
    unsigned processes, newcomers; /* in NVML's list, and of those that were not there before */
    bool listed, device_known; /* whether `own` and `device` are known */
    bool absent; /* NVML told who is there, and this process is not, as far as its pid is known */
    unsigned pids[FIGURES_PIDS]; /* whose the first are */
};

/* `before`: as it was when the call that is measured began; NULL: none is. */
void figures_now(int place, struct figures *figures, const struct figures *before);

/* NVML's handle of the device at `place`; false when NVML cannot be used. */
bool figures_device(const struct real_nvml *real, int place, nvmlDevice_t *device);

/* Whether the pid is known by which NVML lists this process: the agent has told it, or it is its own. */
bool figures_pid_is_known(void);
void figures_listed_by_own_pid(bool listed);

#endif
