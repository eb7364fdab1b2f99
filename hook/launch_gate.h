/* Where everything passes that makes the GPU compute: a launch is charged to the container's share of the
 * device before it is made, and waits here while the share is spent or somebody entitled to it blocks the
 * container.
 *
 * Blocks are leases (leases.h): the agent's ends at the time it names, at most 1 s after it was first seen; a
 * monitor's when it has not answered for 7 s.
 *
 * A launch that waits holds no lock and looks at its limits at least every 10 ms. One that has waited for 5
 * s longer than the container's debt explains is let through: what the container runs may wait for it.
 * Thread, process and fork safe. Never called with a lock held.
 */
#ifndef VGPU_LAUNCH_GATE_H
#define VGPU_LAUNCH_GATE_H

#include "cuda_abi.h"
#include "depth.h"
#include "gpu_time.h"
#include "launch_count.h"

struct launch {
    struct lane *lane; /* NULL: not charged */
    struct trace *trace; /* NULL: not measured */
    uint64_t key;
    int64_t cost_ns;
    CUstream stream;
    bool per_thread, guess, on_credit, always, in_series;
    uint64_t sweep; /* when the sweep that it is of began; 0: of none */
    int looks; /* for what a launch waits for that is about to be measured */
    uint64_t asked_at_ns,
        asked_ns; /* when it last waited to know what its kind costs, 0: it does not; for how long */
    uint64_t due_ns; /* when it wanted to look at the budget again; 0: it was not that it waited for */
};

/* What an open gate is told by: for each device a word that would have to change, and what it was. */
struct launch_gate_word {
    _Atomic(const _Atomic uint32_t *) word;
    _Atomic uint32_t seen;
};
extern struct launch_gate_word launch_gate_words[MAX_DEVICES];
extern _Atomic int launch_gate_devices; /* of this process; 0: the gate was never open */
extern _Atomic(const _Atomic int32_t *) launch_gate_recent;

enum { LAUNCH_GATE_RECENT = 2 };

/* Whether it was opened, for so many devices, and nothing has changed since. All words are looked at: that is
 * faster than to be able to stop. */
static inline bool launch_gate_is_as_opened(int devices)
{
    uint32_t changed = devices ? 0 : 1;
    for (const struct launch_gate_word *of = launch_gate_words; of < launch_gate_words + devices; of++)
        changed |= loose_load(loose_load(&of->word)) ^ loose_load(&of->seen);
    return !changed && loose_load(loose_load(&launch_gate_recent)) == LAUNCH_GATE_RECENT;
}

/* Whether launches pass without being charged, and it is not time to look whether that is still so. A few
 * nanoseconds. */
static inline bool launch_gate_is_open(void)
{
    int devices = atomic_load_explicit(&launch_gate_devices, memory_order_acquire);
    if (!devices || launch_count_untold() + 1 >= LAUNCH_COUNT_MOST || depth_inside()
        || !launch_gate_is_as_opened(devices))
        return false;
    launch_count_add(); /* otherwise launch_gate_pass counts it */
    return true;
}

/* A graph is a kind of its own. */
static inline uint64_t graph_kind(CUgraphExec exec)
{
    return estimate_mix((uintptr_t)exec, UINT64_C(0x6772617068)) | 1;
}

/* What was measured of the kind says nothing any more. */
void launch_gate_forget(uint64_t key);

/* About to launch this kind on `stream` (0 is the thread's own with `per_thread`), which is charged to the
 * stream's device. May wait. */
void launch_gate_pass(struct launch *launch, CUstream stream, bool per_thread, uint64_t key);

/* It passed, and waited for something else since then: that is no time of the GPU's. */
void launch_gate_delayed(struct launch *launch);

/* The driver has answered. */
void launch_gate_passed(struct launch *launch, CUresult result);

/* A capture of some stream has begun, or ended: what is launched into one is not charged before the graph is.
 */
void launch_gate_capture(bool begun);

/* Whether it is made into one. */
bool launch_gate_is_captured(const struct launch *launch);

/* Whether one is open, as far as was seen. */
bool launch_gate_captures(void);

#endif
