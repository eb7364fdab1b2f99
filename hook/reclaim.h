/* Getting back what this process is charged for and does not use, before an allocation is refused: the unused
 * part of memory pools and of the graphs' memory. Drivers do the same when a GPU is full. Thread safe; must
 * not be called from inside the driver.
 */
#ifndef VGPU_RECLAIM_H
#define VGPU_RECLAIM_H

#include "charge.h"

#include <stdbool.h>

/* Charge; when that is refused, give unused memory of the device back and try once more. With what was
 * charged a call has begun: looks_call_ended, or CALL_ENDS with what comes back. */
CUresult charge_reclaiming(int place, enum charge_kind kind, uint64_t bytes, const char *function);

/* Make what is charged what the driver has now; it may have given memory back without our seeing it. */
void true_up(int place);

/* Whether this process may be charged for memory of the device that it does not use, with which so much
 * fits: what does not anyway is not waited for. */
bool reclaimable(int place, uint64_t bytes);

/* Give it back; not inside of a call of the place (looks.h), or that would hide what has gone. */
void reclaim(int place);

/* Calls between these two do not disturb a capture that another stream of the process is in. */
struct quiet {
    CUstreamCaptureMode mode;
    bool changed;
};
struct quiet quiet_begin(void);
void quiet_end(struct quiet quiet);

#endif
