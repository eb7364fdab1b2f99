/* How much of a GPU's memory is in use, and how much of that by this process: as NVML says, where it can be
 * used, and what this process was charged meanwhile. Thread safe.
 */
#ifndef VGPU_FIGURES_H
#define VGPU_FIGURES_H

#include <stdbool.h>
#include <stdint.h>

struct figures {
    uint64_t own, device; /* in use: by this process, by everybody */
    uint64_t held_before, held_after; /* what this process was charged, around the question */
    bool listed, device_known; /* whether `own` and `device` are known */
    bool absent; /* this process was looked for, and not there; to be set before, see below */
};

/* Where `figures` comes as absent, nobody was there by our own pid when the call that is measured began. */
void figures_now(int place, struct figures *figures);

/* Whether the pid is known by which NVML lists this process: the agent has told it, or it is its own. */
bool figures_pid_is_known(void);
void figures_listed_by_own_pid(bool listed);

#endif
