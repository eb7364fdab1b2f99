/* Slots of the usage region: one per process, and who is alive.
 *
 * One word owns a slot: changed by compare-and-swap, so whoever is killed or stopped at any instruction holds
 * nothing up. A process takes a free slot, sets it in order, then marks it ready; only ready slots count, so
 * freeing the slot of a dead process is one exchange that takes all it held out of the sum.
 *
 * A process also keeps the file locked at a byte of its own slot, by an open file that lives exactly as long
 * as its memory (a mapping that fork does not copy). The kernel takes that back however the process ends, in
 * whatever pid namespace it was, and at exec. Where the kernel has no such locks, pid and start time decide.
 */
#ifndef VGPU_REGION_SLOTS_H
#define VGPU_REGION_SLOTS_H

#include "region_layout.h"

#include <stdbool.h>
#include <stdint.h>

/* Take a slot for this process; `fd` is the region's file. NULL with errno set when there is none. `before`:
 * what this process held before it executed this program was freed, so ledgers have to be corrected. */
struct region_slot *slot_take(struct region *region, int fd, bool *before);

/* Whether the slot is still the one that this process took. */
bool slot_is_mine(struct region_slot *slot);

/* After fork: this process is another one. */
void slots_forget(void);

/* Free the slots of the dead; how many there were. `fd` -1: then only pids are looked at. */
unsigned slots_sweep(struct region *region, int fd);

struct holdings {
    uint64_t bytes;
    bool settled; /* nobody was changing anything while we looked; otherwise `bytes` is an upper bound */
    uint64_t largest_bytes;
    int32_t largest_pid; /* 0: nobody holds anything */
};

/* What the living hold at a place. */
struct holdings slots_hold(struct region *region, int place);

/* --- counting in a slot --------------------------------------------------------------------------------- */

#define HELD_CHANGING (UINT64_C(1) << 48)

/* Announce a change of the ledger, and claim `more` bytes in the slot. */
static inline void held_begin(struct region_usage *usage, uint64_t more)
{
    atomic_fetch_add(&usage->held, HELD_CHANGING + more);
}

/* It is done; `less` of the bytes are not held any more. */
static inline void held_end(struct region_usage *usage, uint64_t less)
{
    atomic_fetch_sub(&usage->held, HELD_CHANGING + less);
}

static inline uint64_t held_bytes(const struct region_usage *usage)
{
    return atomic_load(&usage->held) & LEDGER_MOST_BYTES;
}

#endif
