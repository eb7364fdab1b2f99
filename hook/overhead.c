#include "overhead.h"
#include "depth.h"
#include "devices.h"
#include "figures.h"
#include "limits.h"
#include "log.h"
#include "monotonic.h"
#include "pools.h"
#include "reclaim.h"
#include "region.h"
#include "settings.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define MIB (UINT64_C(1) << 20)
#define CONTEXT_MOST_BYTES (2048 * MIB) /* more than any context takes; others' doing beyond it */
#define CONTEXT_UNKNOWN_BYTES (512 * MIB) /* where nothing can be measured: few take more */
#define MODULE_MOST_BYTES (256 * MIB)
#define GUESSED UINT64_C(1) /* in what a context cost last: by the GPU's whole use */
#define MEASURED GUESSED /* a process of the container is making its first: nothing is known yet */
#define MEASURED_MS 1000 /* for so long others wait for it */
#define OTHERS_TRIES 100 /* to see this process while no other thread changes what it holds */
#define OTHERS_TRY_NS 10000000
#define DRIFT_LEAST_BYTES (2 * MIB) /* NVML counts in pages of this size */
/* How many calls are under way, how many of them measured, and how many began ever: a thread is in one at a
 * time, and no process has so many of them. */
#define CALL UINT64_C(1)
#define CALL_MEASURED (UINT64_C(1) << 20)
#define CALL_BEGINS (UINT64_C(1) << 32)
#define CALLS_UNDER_WAY (CALL_MEASURED - 1)
#define CALLS_MEASURED (CALL_BEGINS - CALL_MEASURED)

enum { LOOKS = 3 };

/* What was charged, and the program did not say how much: what each context and each piece of code was, and
 * unseen_bytes, less corrected_bytes. Changed with the lock held, and charged with it. */
static struct unsaid {
    uint64_t unseen_bytes; /* for what nobody asked for */
    uint64_t guessed_bytes; /* by guesses, for what has not ended yet */
    uint64_t corrected_bytes; /* of that, given back: whoever of them ends gives back that much less */
    /* NVML's figure was not seen to bear out the guesses since the last one, or the last end of one. It bears
     * out all of them together: one may be too high by what another is too low by, and that one end. */
    _Atomic bool unsettled;
    _Atomic uint64_t context_bytes; /* what a context was guessed to cost last */
} unsaid[MAX_DEVICES];
static _Atomic uint64_t
    calls_at[1 + MAX_DEVICES]; /* that change what the driver holds; first those of no place */
/* Live managed memory: charged in full, while NVML counts those of its pages that are on the GPU. */
static _Atomic uint64_t managed_bytes[MAX_DEVICES];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic int64_t reconciled_at_s[MAX_DEVICES];
static pthread_once_t fork_once = PTHREAD_ONCE_INIT;

static uint64_t least(uint64_t one, uint64_t other)
{
    return one < other ? one : other;
}

static uint64_t most(uint64_t one, uint64_t other)
{
    return one > other ? one : other;
}

static void forget_after_fork(void)
{
    pthread_mutex_init(&lock, NULL);
    figures_listed_by_own_pid(false);
    memset(unsaid, 0, sizeof unsaid);
    memset(calls_at, 0, sizeof calls_at);
    memset(managed_bytes, 0, sizeof managed_bytes);
}

static void watch_forks(void)
{
    pthread_atfork(NULL, NULL, forget_after_fork);
}

void overhead_call_begins(int place)
{
    atomic_fetch_add(&calls_at[1 + place], CALL_BEGINS + CALL);
}

void overhead_call_ended(int place)
{
    atomic_fetch_sub(&calls_at[1 + place], CALL);
}

void overhead_calls(bool begin)
{
    for (int i = 0; i < MAX_DEVICES; i++)
        atomic_fetch_add(&calls_at[1 + i], begin ? CALL_BEGINS + CALL : -CALL);
}

/* What NVML counts for this process and nobody was charged. Memory is charged before the driver gives it and
 * until after the driver has it back, so what other threads are in the middle of makes this less, not more.
 */
static int64_t uncharged(const struct figures *figures)
{
    return (int64_t)(figures->own - most(figures->held_before, figures->held_after));
}

/* Charged, and maybe not on the GPU: pages that are elsewhere, and what pools and graphs do not use, which
 * the driver takes back when it likes. */
static int64_t elsewhere(int place)
{
    return (int64_t)(atomic_load(&managed_bytes[place]) + pools_idle_bytes(place)
                     + graph_memory_idle_bytes(place));
}

/* Look until what is charged is there: but for `ours` no call was under way, and none began meanwhile. False
 * when that was not to be seen; `uncharged` is the least of all looks then, or the most. */
static bool look(int place, uint64_t ours, bool least_of_all, struct look *seen, const struct figures *before)
{
    _Atomic uint64_t *calls = &calls_at[1 + place];
    bool quiet = false;
    for (int looks = 0; looks < LOOKS && !quiet; looks++) {
        seen->calls = atomic_load(calls);
        seen->elsewhere_bytes = elsewhere(place);
        figures_now(place, &seen->now, before);
        quiet = (seen->calls & CALLS_UNDER_WAY) == ours && seen->calls == atomic_load(calls);
        int64_t found = uncharged(&seen->now);
        if (!looks || quiet || (found < seen->uncharged) == least_of_all)
            seen->uncharged = found;
    }
    return quiet;
}

/* --- around a call -------------------------------------------------------------------------------------- */

/* What a context cost last. Where nobody knows that and processes of the container start together, each would
 * take the contexts of all others for its own: so one goes first, and the others wait for it. */
static uint64_t last_context_bytes(struct overhead *overhead, int place)
{
    uint64_t last = region_context_bytes(place);
    if (figures_pid_is_known())
        return last == MEASURED ? 0 : last;
    for (int ms = 0; last == MEASURED && ms < MEASURED_MS; ms++) {
        monotonic_sleep_until(monotonic_ns() + 1000000);
        last = region_context_bytes(place);
    }
    overhead->first = last <= MEASURED && region_exchange_context_bytes(place, last, MEASURED);
    return last <= MEASURED ? 0 : last;
}

/* It came to nothing that can be told to others: let the next one measure. */
static void stand_back(const struct overhead *overhead)
{
    if (overhead->first)
        region_exchange_context_bytes(overhead->place, MEASURED, 0);
}

static enum charge_kind kind_of(const struct overhead *overhead)
{
    return overhead->of == OVERHEAD_MODULE ? CHARGE_MODULE : CHARGE_CONTEXT;
}

CUresult overhead_begin(struct overhead *overhead, CUdevice device, enum overhead_of of, uint64_t asked_bytes,
                        const char *function)
{
    *overhead = (struct overhead){.place = -1, .of = of, .function = function};
    int place = charging() ? place_of_device(device) : -1;
    pthread_once(&fork_once, watch_forks);
    if (place < 0 || !limits_memory_bytes(place))
        return CUDA_SUCCESS;
    overhead_settle(place, true);
    uint64_t last = of == OVERHEAD_CONTEXT ? last_context_bytes(overhead, place) : 0, ahead = last & ~GUESSED;
    overhead->last_guessed = last & GUESSED;
    ahead += asked_bytes;
    overhead->last_bytes = ahead;
    if (charge_reclaiming(place, kind_of(overhead), ahead, last & GUESSED ? NULL : function)
        != CUDA_SUCCESS) {
        if (!overhead->last_guessed)
            return CUDA_ERROR_OUT_OF_MEMORY;
        ahead = 0; /* it is measured once more before it is refused */
        overhead_call_begins(place);
    }
    overhead->calls = atomic_fetch_add(&calls_at[1 + place], CALL_MEASURED) + CALL_MEASURED;
    overhead->place = place;
    overhead->charged.bytes = ahead;
    overhead->quiet = look(place, CALL, false, &overhead->before, NULL);
    int64_t before = overhead->before.uncharged + (int64_t)ahead;
    overhead->uncharged_before = before > 0 ? before : 0;
    if (!overhead->before.now.device_known) /* nothing will be measured */
        stand_back(overhead);
    return CUDA_SUCCESS;
}

/* What it cost is charged, or it has failed. */
static void leave(struct overhead *overhead)
{
    stand_back(overhead);
    if (overhead->calls)
        atomic_fetch_sub(&calls_at[1 + overhead->place], CALL + CALL_MEASURED);
    overhead->first = false;
    overhead->calls = 0;
}

/* Give back what contexts and code were charged: of either kind, once more was given back of one than it had,
 * because nobody knows which of the guesses was wrong. */
static void give_back(int place, enum charge_kind kind, uint64_t bytes)
{
    const struct region_slot *slot = region_own_slot();
    if (!slot || place < 0)
        return;
    const struct region_usage *usage = &slot->used[place];
    uint64_t has = kind == CHARGE_MODULE ? usage->module_bytes : usage->context_bytes;
    has = has < bytes ? has : bytes;
    charge_back(place, kind, has);
    charge_back(place, CHARGE_CONTEXT + CHARGE_MODULE - kind, bytes - has);
}

void overhead_failed(struct overhead *overhead)
{
    overhead_ended(overhead->place, kind_of(overhead), overhead->charged);
    overhead->charged = (struct cost){0};
    leave(overhead);
    if (overhead->unsure) /* and charged by who saw it meanwhile, perhaps */
        overhead_reconcile(overhead->place, true);
}

void overhead_ended(int place, enum charge_kind kind, struct cost cost)
{
    if (place < 0)
        return;
    struct unsaid *of = &unsaid[place];
    pthread_mutex_lock(&lock);
    if (cost.guessed_bytes) {
        uint64_t gone = least(of->corrected_bytes, cost.guessed_bytes);
        of->guessed_bytes -= cost.guessed_bytes;
        of->corrected_bytes -= gone; /* of another, perhaps: that shows in NVML's figure */
        of->unsettled = true;
        cost.bytes -= gone;
    }
    give_back(place, kind, cost.bytes);
    pthread_mutex_unlock(&lock);
}

/* Nobody says what is in use before there is a context, where NVML is not. */
static uint64_t unknown_context_bytes(const struct figures *now)
{
    log_warning("NVML does not tell what a CUDA context takes: %d MiB are charged; with "
                "NVIDIA_DRIVER_CAPABILITIES=compute,utility it would be what it takes",
                (int)(CONTEXT_UNKNOWN_BYTES / MIB));
    return now->device_known ? least(now->device, CONTEXT_UNKNOWN_BYTES) : CONTEXT_UNKNOWN_BYTES;
}

/* What was taken, or (negative) given back. Beside other threads, which make it less by what they are in the
 * middle of, no less than what was charged ahead, or than what came meanwhile. */
static int64_t measure(struct overhead *overhead)
{
    int place = overhead->place;
    const struct figures *before = &overhead->before.now;
    uint64_t managed = atomic_load(&managed_bytes[place]);
    struct look seen;
    const struct figures *now = &seen.now;
    bool quiet = look(place, CALL, false, &seen, before), alone = quiet && seen.calls == overhead->calls;
    bool apart =
        alone || (quiet && overhead->quiet); /* what others did is on both sides of what is compared */
    if (now->listed && !before->listed)
        figures_listed_by_own_pid(true);
    /* While what was guessed before stands, NVML's figure says nothing of this call alone; nor of one of two
     * at once, either of which may take what both made for its own. */
    bool known = now->listed && figures_pid_is_known() && !unsaid[place].unsettled;
    /* Pages that come to the GPU are no more than there are. */
    overhead->doubtful_bytes =
        known && (seen.calls & CALLS_MEASURED) == CALL_MEASURED ? managed : LEDGER_MOST_BYTES;
    overhead->guessed = overhead->doubtful_bytes || !apart;
    overhead->unsure = overhead->guessed && now->listed
        && (int64_t)region_used_bytes(place) + seen.uncharged > (int64_t)limits_memory_bytes(place);
    int64_t last = (int64_t)overhead->last_bytes;
    if (!known && !last && !before->device_known && overhead->of == OVERHEAD_CONTEXT)
        return (int64_t)unknown_context_bytes(now);
    int64_t grown = known ? (int64_t)(now->own - before->own) : (int64_t)(now->device - before->device);
    if (!known && quiet)
        grown -= (int64_t)(now->held_after - before->held_after);
    int64_t most = overhead->of == OVERHEAD_MODULE ? MODULE_MOST_BYTES : CONTEXT_MOST_BYTES;
    bool may_shrink = alone && overhead->of == OVERHEAD_PART_OF_CONTEXT;
    grown = grown < 0 && !may_shrink ? 0 : grown > most ? most : grown;
    if (known) {
        int64_t cost = seen.uncharged + (int64_t)overhead->charged.bytes - overhead->uncharged_before;
        int64_t more = seen.uncharged - overhead->before.uncharged, floor = more < grown ? more : grown;
        floor = last ? last : floor;
        return apart || cost > floor ? cost : floor;
    }
    /* Others that have come to the GPU began their first contexts after this one, and are behind. */
    bool came = overhead->of == OVERHEAD_CONTEXT && before->held_before == overhead->charged.bytes;
    overhead->sure = came && now->come && now->newcomers == 1;
    if (came && now->come && (!last || overhead->last_guessed))
        return (int64_t)least(now->come, last && !overhead->sure ? overhead->last_bytes : CONTEXT_MOST_BYTES);
    /* Others make it more rather than less: of several contexts the cheapest is the truest. */
    if ((last && (!overhead->last_guessed || !alone || grown == 0 || grown > last)) || !now->device_known
        || !before->device_known)
        return last;
    return grown;
}

void overhead_doubted(int place, uint64_t bytes)
{
    if (place < 0)
        return;
    pthread_mutex_lock(&lock);
    unsaid[place].guessed_bytes += bytes;
    unsaid[place].unsettled = true;
    pthread_mutex_unlock(&lock);
}

/* Make `cost` what is charged; false when that does not fit. */
static bool charge_cost(struct overhead *overhead, uint64_t cost)
{
    int place = overhead->place;
    enum charge_kind kind = kind_of(overhead);
    uint64_t charged = overhead->charged.bytes, more = cost > charged ? cost - charged : 0;
    /* A first guess is others' doing, perhaps, and no reason to refuse. Not so what the program chose. */
    bool guessed = overhead->guessed, first = !overhead->last_bytes;
    bool lenient = overhead->doubtful_bytes && first && overhead->of != OVERHEAD_PART_OF_CONTEXT;
    depth_enter(); /* NVML's figure has it already, and must not be compared until it is charged */
    bool fits = charge_reclaiming(place, kind, more, lenient ? NULL : overhead->function) == CUDA_SUCCESS;
    depth_leave();
    if (fits)
        overhead_call_ended(place); /* that is counted already */
    if (overhead->of == OVERHEAD_CONTEXT && cost
        && (!guessed || overhead->sure
            || (first ? fits : overhead->last_guessed && cost <= overhead->last_bytes)))
        region_set_context_bytes(place, guessed && !overhead->sure ? cost | GUESSED : cost);
    if (overhead->of == OVERHEAD_CONTEXT && guessed)
        atomic_store(&unsaid[place].context_bytes, cost);
    if (!fits && lenient) {
        uint64_t left = limits_memory_bytes(place) - region_used_bytes(place);
        uint64_t sure = more > overhead->doubtful_bytes ? more - overhead->doubtful_bytes : 1;
        more = left >= sure && left < more ? left : more; /* not even that is left: refused */
        fits = charge(place, kind, more, overhead->function) == CUDA_SUCCESS;
        overhead->unsure = true;
    }
    if (!fits)
        return false;
    if (cost < charged)
        overhead_ended(place, kind, (struct cost){charged - cost, 0});
    else
        cost = charged + more;
    overhead->charged = (struct cost){cost, guessed ? cost : 0};
    if (guessed)
        overhead_doubted(place, cost);
    return true;
}

/* What was found was more than fits, and maybe of others' making. Whether it was not, by what NVML says that
 * this process holds, once no other thread changes that; where they never let that be seen, it is believed.
 */
static bool is_over(const struct overhead *overhead)
{
    int place = overhead->place;
    struct look seen;
    if (!overhead->unsure || overhead->of == OVERHEAD_PART_OF_CONTEXT || !figures_pid_is_known())
        return false;
    bool quiet = look(place, 0, true, &seen, NULL);
    for (int tries = 0; !quiet && tries < OTHERS_TRIES; tries++) {
        monotonic_sleep_until(monotonic_ns() + OTHERS_TRY_NS);
        quiet = look(place, 0, true, &seen, NULL);
    }
    int64_t limit = (int64_t)limits_memory_bytes(place), over = (int64_t)region_used_bytes(place) - limit;
    over += seen.uncharged > 0 ? seen.uncharged : 0;
    if (!quiet || !seen.now.listed || !limit || over <= 0)
        return false;
    charge_refused(place, overhead->charged.bytes + (uint64_t)over, overhead->function);
    return true;
}

bool overhead_changed(struct overhead *overhead, struct cost *cost, uint64_t *less)
{
    int64_t bytes = overhead->place < 0 ? 0 : measure(overhead);
    *less = bytes < 0 ? (uint64_t)-bytes : 0;
    bool fits = overhead->place < 0 || charge_cost(overhead, bytes > 0 ? (uint64_t)bytes : 0);
    /* If it does not fit and cannot be undone either, it stays charged what it was ahead. */
    *cost = overhead->charged;
    leave(overhead);
    return fits && !is_over(overhead);
}

bool overhead_made(struct overhead *overhead, struct cost *cost)
{
    uint64_t less;
    return overhead_changed(overhead, cost, &less);
}

/* --- what came without a call --------------------------------------------------------------------------- */

static bool is_time(int place)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
    _Atomic int64_t *at_s = &reconciled_at_s[place];
    int64_t last = atomic_load_explicit(at_s, memory_order_relaxed), now_s = now.tv_sec;
    return now_s != last && atomic_compare_exchange_strong(at_s, &last, now_s);
}

/* What may be given back, which is never anything that the program asked for. Called with the lock held. */
static uint64_t doubtful(int place)
{
    const struct unsaid *of = &unsaid[place];
    return of->unseen_bytes + (of->unsettled ? of->guessed_bytes - of->corrected_bytes : 0);
}

uint64_t overhead_unseen_bytes(int place)
{
    pthread_mutex_lock(&lock);
    uint64_t bytes = place >= 0 ? doubtful(place) : 0;
    pthread_mutex_unlock(&lock);
    return bytes;
}

void overhead_settle(int place, bool at_once)
{
    if (place >= 0)
        overhead_reconcile(place,
                           at_once && atomic_load_explicit(&unsaid[place].unsettled, memory_order_relaxed));
}

/* All guesses are right, so what other processes go by is none any more. */
static void bear_out(int place)
{
    uint64_t context_bytes = atomic_load(&unsaid[place].context_bytes);
    if (context_bytes)
        region_exchange_context_bytes(place, context_bytes | GUESSED, context_bytes);
    unsaid[place].unsettled = false;
}

/* Called with the lock held: so much more is charged than NVML counts. `quiet`: that is no other thread's
 * doing. */
static void correct(int place, int64_t over, bool quiet)
{
    struct unsaid *of = &unsaid[place];
    int64_t most = (int64_t)doubtful(place), less = over > most ? most : over;
    if (less <= 0 && less > -(int64_t)DRIFT_LEAST_BYTES) {
        if (of->unsettled && quiet)
            bear_out(place);
        return;
    }
    uint64_t last = region_context_bytes(place);
    if (of->unsettled && (last & GUESSED || last == atomic_load(&of->context_bytes)))
        region_set_context_bytes(place, 0); /* too high or too low: the next one is measured anew */
    of->unsettled = of->unsettled || !quiet; /* who measures now does so while this changes */
    if (less < 0) {
        of->unseen_bytes += (uint64_t)-less;
        charge_anyway(place, CHARGE_MODULE, (uint64_t)-less);
        return;
    }
    uint64_t seen = least((uint64_t)less, of->unseen_bytes), guesses = (uint64_t)less - seen;
    of->unseen_bytes -= seen;
    of->corrected_bytes += guesses;
    atomic_fetch_add(&calls_at[1 + place],
                     CALL_BEGINS); /* who has seen the same must not give it back again */
    give_back(place, seen ? CHARGE_MODULE : CHARGE_CONTEXT, (uint64_t)less);
}

void overhead_managed(int place, int64_t bytes)
{
    if (place >= 0)
        atomic_fetch_add(&managed_bytes[place], (uint64_t)bytes);
}

void overhead_reconcile(int place, bool at_once)
{
    struct look seen;
    if (!figures_pid_is_known() || place < 0 || !charging() || !limits_memory_bytes(place)
        || (!is_time(place) && !at_once))
        return;
    bool quiet = look(place, 0, true, &seen, NULL);
    int64_t missing = seen.uncharged;
    if (!seen.now.listed)
        return;
    pthread_mutex_lock(&lock);
    if (missing < 0) { /* what others are in the middle of looks the same, and what one of them corrected */
        quiet = quiet && seen.calls == atomic_load(&calls_at[1 + place]);
        missing += seen.elsewhere_bytes;
        missing = quiet && missing < 0 ? missing : 0;
        quiet = quiet && !seen.elsewhere_bytes;
    }
    correct(place, -missing, quiet);
    pthread_mutex_unlock(&lock);
}
