/* What NVML counts for this process and nobody was charged, seen while nothing changes that: calls are under
 * way during which the driver holds what is not charged, or the other way round. Thread safe.
 */
#ifndef VGPU_LOOKS_H
#define VGPU_LOOKS_H

#include "figures.h"

#include <stdbool.h>
#include <stdint.h>

/* How many calls are under way, how many of them measured, and how many began ever: a thread is in one at a
 * time, and no process has so many of them. */
#define ONE_CALL UINT64_C(1)
#define ONE_MEASURED (UINT64_C(1) << 20)
#define ONE_BEGINS (UINT64_C(1) << 32)

/* What is counted where a call begins or ends, here or with what it changes: region_calls, blocks_calls. */
#define CALL_BEGINS (ONE_BEGINS + ONE_CALL)
#define CALL_ENDS (-ONE_CALL)

struct look {
    struct figures now;
    uint64_t calls; /* as of before */
    int64_t uncharged, elsewhere_bytes;
};

/* Around each call of this process after which the driver holds more or less of the place's memory: from
 * before that is charged until it has been given, or from before it is taken back until the charge is as
 * well. Meanwhile NVML's figure says nothing of what was charged too much. One that never ends, of a thread
 * that was cancelled, keeps guesses from being given back. What is measured here is such a call by itself. A
 * place < 0 is none. */
void looks_call_begins(int place);
void looks_call_ended(int place);

/* The same where nobody knows yet which places it is of. */
void looks_calls(bool begin);

/* Such a call, inside of its begin and end, measures what it takes: gives the calls of then. Ends with the
 * call.
 */
uint64_t looks_measured_begins(int place);
void looks_measured_ended(int place);

/* Managed memory was charged (negative: is not any more): as much of the charge may be of pages that are not
 * on the GPU, and is no sign that something else has gone. */
void looks_managed(int place, int64_t bytes);

uint64_t looks_managed_bytes(int place);

/* Look until what is charged is there: no call was under way, but for that which the caller is `inside` of,
 * and none began meanwhile. False when that was not to be seen; `uncharged` is the least of all looks then,
 * or the most. `before` is for figures_now. */
bool look(int place, bool inside, bool least_of_all, struct look *seen, const struct figures *before);

/* Whether one call alone was being measured; and whether no call has begun or ended since. */
bool looks_one_measures(const struct look *seen);
bool looks_unchanged(const struct look *seen, int place);

/* What was charged is corrected by a look: who has seen the same must not do so again. */
void looks_corrected(int place);

/* After a fork. */
void looks_forget(void);

#endif
