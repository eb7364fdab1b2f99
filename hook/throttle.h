/* The arithmetic of a share of GPU time: the budget that all processes of a container spend from, and what a
 * launch is expected to cost.
 *
 * Pure: no CUDA, no I/O, no clock; times are passed in, in ns. The budget lies in memory that tenants can
 * write, so every value read from it is taken for possible only within bounds. Thread and process safe, by
 * atomics alone.
 */
#ifndef VGPU_THROTTLE_H
#define VGPU_THROTTLE_H

#include "loose.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MS_NS INT64_C(1000000)

/* GPU time in ns. The budget grows by the share of the time that passes, and a launch takes from it what it
 * is expected to cost, once the budget is above zero; it may end below. */
#define SHARE_IDLE_NS (10 * MS_NS) /* most that an idle container saves up: 1 % of a second */
#define SHARE_BANK_NS (200 * MS_NS) /* times the share: most that one saves up while others have the GPU */
#define SHARE_CHUNK_NS MS_NS /* most that a process takes at once */
#define SHARE_DEBT_NS (10000 * MS_NS) /* a kernel longer than this is forgiven the rest */
#define SHARE_WAIT_MOST_NS (10 * MS_NS) /* look at the limits again at least this often */
#define SHARE_WAIT_LEAST_NS MS_NS
#define SHARE_WAIT_NOTED_NS (100 * MS_NS) /* what is waited is counted at least this often */
#define SHARE_CONTENDED_NS (50 * MS_NS) /* others that had the GPU so lately are still there */
enum { SHARE_WHOLE_PERMILLE = 1000, SHARE_ENDS = 4 };

/* Words of the shared region; their order is that of region_device. */
struct share {
    _Atomic int64_t budget_ns; /* negative: in debt */
    _Atomic uint64_t refilled_at_ns;
    _Atomic uint64_t charged_ns, throttled_ns, launches, waits; /* counters */
    _Atomic uint64_t
        contended_at_ns; /* when others were last seen to have the GPU while we had work for it */
    _Atomic uint64_t overlong_at_ns; /* when a launch was last seen to run for far longer than it should */
    uint64_t of_others[4];
    _Atomic uint64_t least_had; /* see below */
    _Atomic uint64_t caught_up_at_ns; /* until then may be spent what came due while nobody could spend it */
    /* Of credit.h: */
    _Atomic uint64_t waits_at_ns; /* when a launch was last seen that may wait for another GPU, */
    _Atomic uint64_t let_out_at_ns; /* when one that may be waited for was last held, or let out, there, */
    _Atomic uint64_t waited_until_ns; /* when such a one ended last, */
    _Atomic uint64_t ended_at_ns[SHARE_ENDS]; /* and the last ones that were measured */
    _Atomic int64_t met; /* how often such a one ended with one on another GPU */
    _Atomic uint64_t waited_since_ns; /* when the one that ended at waited_until_ns had begun */
};

/* Whether others are there who want the GPU as well. */
bool share_contended(const struct share *share, uint64_t now_ns);

/* Add what `permille` of the time since the last refill is worth. What the container cannot spend because
 * others have the GPU is saved up, and lost again as fast as it could have been spent since. */
void share_refill(struct share *share, uint64_t now_ns, uint32_t permille);

/* Somebody who waited for the budget went on `late_ns` later than it wanted to: it was not let run, as where
 * a container's processor time is used up. What came due meanwhile is saved up, like the above. So late as to
 * lose some of that it was stopped, and saves no more than who is idle. */
void share_held_up(struct share *share, uint64_t now_ns, uint64_t late_ns, uint32_t permille);

/* Take GPU time for a launch of `cost_ns`, and up to `chunk_ns` for those after it. 0: the budget is spent;
 * otherwise at least `cost_ns`. */
int64_t share_take(struct share *share, int64_t cost_ns, int64_t chunk_ns);

/* Something cost `ns` more (less, if negative) than was taken for it. */
void share_correct(struct share *share, int64_t ns);

/* How long to wait before there is something to take again, in ns: SHARE_WAIT_LEAST_NS to
 * SHARE_WAIT_MOST_NS. */
uint64_t share_wait_ns(const struct share *share, uint32_t permille);

/* How long a debt of the budget takes to be repaid, in ns. */
uint64_t share_debt_ns(const struct share *share, uint32_t permille);

/* --- whose turn it is among the processes of a container, and the threads of a process -------------------
 */

/* Who has had less of the GPU goes first. One that looks at the budget leaves in `least_had`, a word of all
 * that are compared, how much it has had, and when it looked: unless another did lately who has had less.
 * That holds for SHARE_LATELY_NS, so nobody waits for one that is gone. Nor is any of the budget lost: who
 * has had more waits only while it could be saved up for later, and what others leave until then is not held
 * against who takes it. */
struct turn {
    _Atomic uint64_t had_ns; /* counted from what another had had when this one began to want some */
    _Atomic uint64_t told; /* the word that it left last */
    _Atomic uint64_t idle_at_ns; /* if it does not look by then, it wanted none meanwhile */
};

#define SHARE_LATELY_NS (50 * MS_NS) /* five times as long as who waits sleeps at most */

/* Whether to leave the budget to another that has had less, by more than a chunk. */
bool share_is_anothers_turn(const struct share *share, const _Atomic uint64_t *least_had, struct turn *turn,
                            uint64_t now_ns, uint32_t permille);

/* Whether another one has looked lately, as far as the word tells: it had less, or this one never looked. */
bool share_another_looks(const _Atomic uint64_t *least_had, const struct turn *turn, uint64_t now_ns);

/* Tell the others, having looked at the budget and taken from it or not. */
void share_tell_turn(const struct share *share, _Atomic uint64_t *least_had, struct turn *turn,
                     uint64_t now_ns, uint32_t permille);

enum { SHARE_TURNS = 64 };

/* Those of the threads of a process, or of its streams, of which only `idle_at_ns` is used. All zero is
 * empty. */
struct turns {
    _Atomic uint64_t least_had;
    _Atomic int64_t least_cost_ns; /* of a launch of who left it */
    _Atomic uint64_t whose[SHARE_TURNS]; /* a number; 0: nobody's yet */
    struct turn of[SHARE_TURNS];
};

/* Which of them is whose, by a number that is not 0. Where all are taken, one that is idle loses its own;
 * where none is, two have the same. */
unsigned share_turn_of(struct turns *all, uint64_t whose, uint64_t now_ns);

/* --- what launches cost --------------------------------------------------------------------------------- */

/* Of one kind of launch: a kernel with its shape, or a graph. */
struct estimate {
    _Atomic uint64_t key; /* 0: free */
    _Atomic uint32_t ns; /* 0: never measured */
    _Atomic uint16_t deviation; /* of samples from it, in permille of it, or ESTIMATE_HELD; ESTIMATE_ALWAYS */
    _Atomic uint8_t samples; /* that went into it, up to ESTIMATE_SAMPLES_ALL */
    _Atomic uint8_t parts; /* of a ns, beyond `ns`: what is rounded off would move a mean of many */
};
_Static_assert(sizeof(struct estimate) == 16, "four of them in a cache line");

enum {
    ESTIMATE_ALWAYS = 0x8000, /* every launch is to be measured, as long as the kind varies, */
    ESTIMATE_OFTEN = 0x4000, /* or every few */
    ESTIMATE_HELD =
        0x3fff, /* of a kind that was far off: counted down by a sample, and it varies till then */
    ESTIMATE_FAR = 5, /* halves of what was expected: so much longer is far off */
    ESTIMATE_DEVIATES = 4000, /* most that a sample deviates, and where the countdown ends */
    ESTIMATE_WAYS = 4, /* places that a key can be in */
    ESTIMATE_SETS = 2048,
    ESTIMATE_SAMPLES = 16, /* that the moving mean goes back, */
    ESTIMATE_SAMPLES_OFTEN = 64, /* and of kinds of which every few launches are measured, */
    ESTIMATE_SAMPLES_ALL = 255, /* and of those of which all are, or that are now and then far off, */
    ESTIMATE_LONGER = 8, /* unless one takes so many times longer: they may all do from now on */
    ESTIMATE_LEAST_NS = 100, /* or the budget would never be looked at again, nor the kind be measured */
    ESTIMATE_FIRST_NS = 20000, /* of what was never measured, when nothing was, */
    ESTIMATE_FIRST_BESIDE_NS = 800000, /* and others wait, each for its own first one perhaps */
    ESTIMATE_VARIES = 250, /* a deviation that makes estimates a poor guide */
    ESTIMATE_LONG_NS = 1000000, /* from here on every launch is to be measured, */
    ESTIMATE_SWEPT_NS = 200000, /* of which the long ones of a kind that varies end after most sweeps, */
    ESTIMATE_VARYING_NS =
        9000, /* and from here on every one of a kind that varies, as measuring takes less, */
    ESTIMATE_EVENTS = 20, /* and from so many times an event on, but for */
    ESTIMATE_EVENTS_NS = 30000, /* those that are as long as this, */
    ESTIMATE_ALONE_NS = 12000, /* and where others run beside it, of one that is now and then far off, */
    ESTIMATE_OFTEN_NS = 2000, /* and from here on one in a few of those */
};

/* A kernel's shapes are kinds of their own, but what one of them is seen to do now and then, all may: so a
 * key's highest bits say which kernel it is of, or another with the same bits. */
enum { FAMILY_AT = 52, FAMILIES = 1 << (64 - FAMILY_AT) };
#define ESTIMATE_FAMILY (UINT64_C(0xfff) << FAMILY_AT)

/* One per process. All zero is empty. */
struct predictor {
    struct estimate sets[ESTIMATE_SETS][ESTIMATE_WAYS];
    _Atomic uint32_t event_ns; /* how long an event holds up its stream; 0: not known */
    atomic_bool far[FAMILIES]; /* one of its kinds is far longer now and then */
};

/* What is in its upper half is in both then. */
static inline uint64_t estimate_fold(uint64_t word)
{
    return word ^ word >> 32;
}

static inline uint64_t estimate_mix(uint64_t hash, uint64_t word)
{
    hash = (hash ^ word) * UINT64_C(0x9e3779b97f4a7c15);
    return estimate_fold(hash);
}

/* Key of a kernel with the shape of its launch. Never 0. */
static inline uint64_t estimate_key(const void *function, unsigned x, unsigned y, unsigned z,
                                    unsigned block_x, unsigned block_y, unsigned block_z,
                                    unsigned shared_bytes)
{
    /* Factors without a pattern, and no product that waits for another: all that follows waits for this. */
    uint64_t family = (uintptr_t)function * UINT64_C(0x9e3779b97f4a7c15);
    uint64_t hash = family + estimate_fold((uint64_t)x << 32 | block_x) * UINT64_C(0xd6e8feb86659fd93)
        + estimate_fold((uint64_t)y << 32 | block_y) * UINT64_C(0xa0761d6478bd642f)
        + estimate_fold((uint64_t)z << 48 ^ (uint64_t)block_z << 32 ^ shared_bytes)
            * UINT64_C(0xe7037ed1a0b428db);
    hash = estimate_fold(hash) | 1;
    return (hash & ~ESTIMATE_FAMILY) | (family & ESTIMATE_FAMILY);
}

/* NULL when the key is not there. */
inline struct estimate *estimate_find(struct predictor *predictor, uint64_t key)
{
    struct estimate *set = predictor->sets[key >> 20 & (ESTIMATE_SETS - 1)];
    for (int way = 0; way < ESTIMATE_WAYS; way++)
        if (atomic_load_explicit(&set[way].key, memory_order_relaxed) == key)
            return &set[way];
    return NULL;
}

/* Whether every launch of the kind is to be measured. */
static inline bool estimate_measures_all(struct estimate *estimate)
{
    return atomic_load_explicit(&estimate->ns, memory_order_relaxed) >= ESTIMATE_LONG_NS
        || atomic_load_explicit(&estimate->deviation, memory_order_relaxed) >= ESTIMATE_ALWAYS;
}

/* The same where what runs beside it is not measured, which would be charged to it: not of a kind that
 * varies, but for one that is long, or for a sweep, or not short and now and then far off. */
static inline bool estimate_measures_all_alone(struct estimate *estimate)
{
    uint32_t ns = atomic_load_explicit(&estimate->ns, memory_order_relaxed);
    int deviation = atomic_load_explicit(&estimate->deviation, memory_order_relaxed);
    return ns >= ESTIMATE_LONG_NS || (ns >= ESTIMATE_SWEPT_NS && deviation >= ESTIMATE_ALWAYS)
        || (ns >= ESTIMATE_ALONE_NS && deviation >= ESTIMATE_ALWAYS
            && (deviation & ESTIMATE_HELD) > ESTIMATE_DEVIATES);
}

/* Whether one in a few is. */
static inline bool estimate_measures_often(struct estimate *estimate)
{
    return atomic_load_explicit(&estimate->deviation, memory_order_relaxed) & ESTIMATE_OFTEN;
}

/* The place of the key, another's if all are taken. */
struct estimate *estimate_claim(struct predictor *predictor, uint64_t key);

/* A launch of this kind cost `ns`; one measurement may say less than nothing, if the mean of many is right.
 * `single_ns`: the same, but for a measurement that is not a mean of several. */
void estimate_learn(struct predictor *predictor, struct estimate *estimate, uint64_t key, int64_t ns,
                    int64_t single_ns);

/* Many launches of it say so. */
void estimate_set(struct estimate *estimate, int64_t ns);

/* Measure it often for a while, as if it had been far longer once. */
void estimate_watch(const struct predictor *predictor, struct estimate *estimate);

/* One that was never measured takes at least `ns`. */
void estimate_raise(struct estimate *estimate, uint64_t key, int64_t ns);

#endif
