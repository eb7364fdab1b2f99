/* What launches of this process really cost of a device's time: measured by pairs of events around single
 * launches, on the launch's own stream, and read later by whoever polls (gpu_watch.h, or a thread that
 * waits).
 *
 * A measurement corrects twice: the budget, by what the measured launch was charged wrongly, and the estimate
 * of its kind, by which the ones that are not measured are charged. Time that other processes had the GPU, or
 * other contexts of this one, is taken off (residency.h), and time during which other launches of its context
 * ran beside it is shared with them.
 *
 * A failure of the driver in any of our own calls ends that measurement, never the tenant's call. What
 * would be measured is then waited for (gpu_clock.h), as it is for a second after a measurement could not be
 * read. No lock is held while the driver is called, and nothing here is
 * called on a stream that is being captured. Thread safe; a child of fork starts empty.
 */
#ifndef VGPU_GPU_TIME_H
#define VGPU_GPU_TIME_H

#include "cuda_abi.h"
#include "monotonic.h"
#include "settings.h"
#include "throttle.h"

enum {
    GUESSES = 16, /* that may be out at once */
    SWEEP_MOST = 360, /* launches of a sweep (gpu_sweep.h) */
};

#define SEVERAL_STREAMS_NS (500 * MS_NS) /* for so long after that was last seen */

struct trace;

/* What this process does on one device. */
enum {
    ONE_BY_ONE = 4
}; /* fewer may have seen only where a thread goes on to what it had to wait for anyway */

struct lane {
    _Atomic(struct share *) share; /* of the container; set by whichever threads look first */
    _Atomic int64_t tokens_ns; /* taken from the share, not spent yet */
    _Atomic int64_t granted_ns; /* taken from it, ever, and not given back unspent */
    _Atomic int64_t unreported_ns; /* spent, not in the share's counter yet */
    struct turn turn; /* of this process among those of the container */
    _Atomic uint64_t launched_at_ns; /* when a launch last took from the share */
    _Atomic uint64_t credit_at_ns, credit_ended_ns; /* when one last went out on credit, and was over; */
    _Atomic int64_t credit_ns; /* and what more may at once (credit.h) */
    unsigned ends; /* that were told to other GPUs */
    _Atomic uint64_t measured_at_ns; /* when one was last measured, */
    _Atomic uint64_t sampled_at_ns; /* and one that need not have been */
    _Atomic uint64_t last_stream, several_streams_at_ns;
    _Atomic int contexts; /* that were launched in, and are told apart */
    _Atomic int64_t calls; /* around launches that are measured, in the order in which they were made */
    _Atomic uint64_t streams_seen, streams_seen_before; /* a bit for each, since the last sweep and before */
    _Atomic uint64_t busy_before; /* a bit for each that was so when the last sweep began */
    _Atomic bool always_lately; /* since the last sweep one came that is always measured */
    _Atomic uint64_t unmeasured_at_ns; /* when one last came that is measured in sweeps only */
    _Atomic uint64_t no_room_at_ns; /* when one was last waited with for room to measure it, in vain */
    _Atomic int64_t
        always_ns; /* what those were charged that do not run beside what is always measured, ever */
    _Atomic unsigned noted_next;
    _Atomic uint64_t swept_at_ns; /* when a sweep last began (gpu_sweep.h), */
    _Atomic int64_t unswept_ns; /* and what was taken from the share since */
    _Atomic int sweep_left; /* launches, of those to be measured all */
    _Atomic int sweep_spare; /* of them, which are left out where the others took long */
    _Atomic int one_by_one; /* sweeps of several streams in a row that have seen them used so (gpu_sweep.c),
                               at most: */
    _Atomic int sweep_out; /* that are not settled yet */
    _Atomic uint64_t went_on_at_ns; /* when others were first launched after them, 0: not yet */
    _Atomic int64_t went_on_call; /* and how many calls there had been by then; 0: not yet */
    /* Kinds that were never measured: how many launches of them are out, and what the first of other kinds
     * cost lately. */
    _Atomic int guesses;
    _Atomic int64_t
        uncertain_ns; /* charged ahead for what is being measured, as far as it may be given back */
    _Atomic int64_t guess_ns; /* 0: nothing was measured yet */
    _Atomic int64_t
        queued_ns; /* since when a launch waits for the GPU that others have; 0: none was seen to */
    _Atomic uint64_t in_vain_ns; /* the same of one that others have waited for in vain */
    _Atomic(struct turn *) payer; /* whose thread took last from the share; NULL: none did */
    struct share own; /* of a process that has lowered its own share, which takes from both */
    _Atomic uint32_t own_permille; /* 0: it has not */
    struct turns threads;
};

extern _Atomic(struct lane *) gpu_lanes[MAX_DEVICES] __attribute__((visibility("hidden"))); /* in use */
struct lane *gpu_lane_open(int place);

/* NULL for a place that cannot be counted. */
static inline struct lane *gpu_lane(int place)
{
    if (place < 0 || place >= MAX_DEVICES)
        return NULL;
    struct lane *lane = atomic_load_explicit(&gpu_lanes[place], memory_order_acquire);
    return __builtin_expect(lane != NULL, 1) ? lane : gpu_lane_open(place);
}

/* Have memory for what is measured. Not as a part of the library, which is in every process. */
bool gpu_time_prepare(void);

/* What tells the streams of the process apart. */
uint64_t gpu_time_stream(CUstream stream, bool per_thread);

/* Whether launches go to more than one, of one context. */
static inline bool gpu_time_several_streams(const struct lane *lane, uint64_t now_ns)
{
    uint64_t several_ns = loose_load(&lane->several_streams_at_ns);
    return several_ns && elapsed_ns(several_ns, now_ns) <= SEVERAL_STREAMS_NS;
}

/* Whether they may go to more than one context. These take turns, so that one stream of each is not several.
 */
static inline bool gpu_time_several_contexts(const struct lane *lane)
{
    return loose_load(&lane->contexts) > 1;
}

/* The bit of a stream, which may be busy with what is launched for so long: its own, up to 64 that may be. */
uint64_t gpu_time_stream_bit(struct lane *lane, uint64_t stream, uint64_t now_ns, int64_t busy_ns);

/* Whether what goes to the stream of this bit does not run beside what is always measured, as such ones came
 * there lately, and to no other; for so long one does that comes now, 0: it is none. */
bool gpu_time_in_series(struct lane *lane, uint64_t bit, uint64_t now_ns, int64_t for_ns);

/* The bits of those that may be busy with what was launched before. */
uint64_t gpu_time_busy_streams(struct lane *lane, uint64_t now_ns);

/* About to launch on `stream` (0 is the thread's own with `per_thread`): start to measure. NULL when that is
 * not possible now. `guess`: its kind was never measured, and it is one of the lane's guesses until it is.
 * `always`: its kind is always measured, though others beside it are not. `edge`: only when it runs is asked.
 */
struct trace *gpu_time_begin(struct lane *lane, CUstream stream, bool per_thread, bool guess, bool always,
                             bool edge);

/* The same launch is about to be made only now: measure from here. */
void gpu_time_begin_again(struct lane *lane, struct trace *trace, CUstream stream, bool per_thread);

/* The launch of this kind, on the same stream, has been made and was charged `charged_ns`; or it failed. May
 * wait for it.
 * `sweep`: when the one began of which the launches are settled together, and this one too; or 0. Whether it
 * is being measured. */
bool gpu_time_end(struct lane *lane, struct trace *trace, CUstream stream, bool per_thread, uint64_t key,
                  int64_t charged_ns, uint64_t sweep, bool on_credit, bool launched);

/* What the launches of the lane were charged, ever. */
static inline int64_t gpu_time_spent_ns(const struct lane *lane)
{
    return loose_load(&lane->granted_ns) - loose_load(&lane->tokens_ns);
}

/* Note what those were charged by now that are not always measured, but for `beyond_ns`. */
void gpu_time_note_spent(struct lane *lane, uint64_t now_ns, int64_t beyond_ns);

/* How many launches of this kind are out whose cost was guessed. */
int gpu_time_guesses(struct lane *lane, uint64_t key);

/* Whether anything is being measured. */
bool gpu_time_measuring(struct lane *lane);

/* What was charged for a launch of a thread cost `ns` more (less, if negative). */
void gpu_time_correct(struct lane *lane, struct turn *turn, int64_t ns);

/* The turn of the calling thread. */
struct turn *gpu_time_own_turn(struct lane *lane, uint64_t now_ns);

/* Let nothing more go on what was taken from the share before: it is given back. */
void gpu_time_drop_tokens(struct lane *lane);

/* Read what can be read now. Whether anything of this process is being measured there. */
bool gpu_time_read(struct lane *lane);

/* The same for a place, and see who has the GPU if launches were made lately: so often, by one thread. */
bool gpu_time_poll(int place);

/* Every millisecond; twice as often where contexts of our own take turns, each of which is charged what looks
 * tell that it had; and four times as a sweep beside others begins, which takes what others had unseen for
 * its launches' own. */
int64_t gpu_time_poll_every_ns(void);

/* Show monitors what this process uses (busy.h), without asking the driver. Whether that is to be done again
 * in a second. */
bool gpu_time_show(void);

/* The context may be about to end: nothing is measured or read in it until gpu_time_context_ended is told the
 * same context and what this gave. `last`: it ends unless the driver refuses; what it is charged for what
 * runs there is known first, as far as that takes at most 10 s. */
uint32_t gpu_time_context_ending(CUcontext context, bool last);

/* It has ended, with all that was ours in it; or has not. What had been launched stays charged. */
void gpu_time_context_ended(uint32_t held, CUcontext context, bool ended);

/* Estimates of this process, for all devices. */
extern struct predictor gpu_time_predictor;

#endif
