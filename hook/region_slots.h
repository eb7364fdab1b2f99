/* Slots of the usage region: one per process, and who is alive.
 *
 * One word owns a slot: changed by compare-and-swap, so whoever is killed or stopped at any instruction holds
 * nothing up. A process takes a free slot, sets it in order, then marks it ready; only ready slots count, so
 * freeing the slot of a dead process is one exchange that takes all it held out of the sum.
 *
 * What a process claims goes to its total first, then into the ledger, then to one of the parts of the total;
 * what it gives back leaves in the opposite order. So between a look at the ledger and the next change of it,
 * the parts add up to at most, and the totals to at least, what the ledger ought to say: where both are
 * equal, it is exactly that, however many are in the middle of something.
 *
 * A process also keeps the file locked at a byte of its own slot, by an open file that lives exactly as long
 * as its memory (a mapping). The kernel takes that back however the process ends, in whatever pid namespace
 * it was, and at exec. As long as the driver is not open, fork does not copy it, and what a fork copies
 * before that, the child gives up. From then on children have it, as they have the driver's files: the driver
 * keeps the memory of a process until nobody has these. Where the kernel has no such locks, pid and start
 * time decide.
 */
#ifndef VGPU_REGION_SLOTS_H
#define VGPU_REGION_SLOTS_H

#include "region_layout.h"

#include <stdbool.h>
#include <stdint.h>

/* Take a slot for this process; `fd` is the region's file. NULL with errno set when there is none. `before`:
 * what this process held before it executed this program was freed, so ledgers have to be corrected. */
struct region_slot *slot_take(struct region *region, int fd, bool *before);

/* What this process held in the programs that it executed before this one, and children's copies of the
 * driver's files keep: the driver may tell it for this process. */
uint64_t slots_before_bytes(struct region *region, int place);

/* The driver is about to open its files, which children get. */
void slot_stays_in_children(void);

/* Whether the slot is still the one that this process took. */
extern _Atomic uint64_t slots_my_owner __attribute__((visibility("hidden"))); /* its owner word */
static inline bool slot_is_mine(struct region_slot *slot)
{
    return atomic_load(&slot->owner) == atomic_load(&slots_my_owner);
}

/* After fork: this process is another one. Async-signal-safe. */
void slots_forget(void);

/* Free the slots of the dead; how many there were. `fd` -1: then only pids are looked at. */
unsigned slots_sweep(struct region *region, int fd);

struct holdings {
    uint64_t bytes; /* never less than is held */
    bool settled; /* exactly that is held, if the ledger did not change while we looked */
    uint64_t largest_bytes;
    int32_t largest_pid; /* 0: nobody holds anything */
};

/* What a process holds of a device, claims apart that may still be refused. Read in any order: see above. */
static inline uint64_t usage_parts(const struct region_usage *usage)
{
    return atomic_load(&usage->context_bytes) + atomic_load(&usage->module_bytes)
        + atomic_load(&usage->data_bytes);
}

/* What the living hold at a place. */
struct holdings slots_hold(struct region *region, int place);

/* A living process, and what it holds at a place. */
struct member {
    int32_t pid, host_pid; /* the second is 0 until the agent has filled it in */
    uint64_t bytes;
};

/* The next one from slot `*index` on, which is moved behind it; false when there is none. */
bool slots_next(struct region *region, int place, int32_t *index, struct member *member);

#endif
