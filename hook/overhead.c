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
#define MEASURED CONTEXT_GUESSED /* a process of the container is making its first: nothing is known yet */
#define MEASURED_MS 1000 /* for so long others wait for it */
#define OTHERS_TRIES 100 /* to see this process while no other thread changes what it holds */
#define OTHERS_TRY_NS 10000000

static pthread_once_t fork_once = PTHREAD_ONCE_INIT;

static uint64_t least(uint64_t one, uint64_t other)
{
    return one < other ? one : other;
}

static void forget_after_fork(void)
{
    figures_listed_by_own_pid(false);
    guesses_forget();
    looks_forget();
}

static void watch_forks(void)
{
    pthread_atfork(NULL, NULL, forget_after_fork);
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
    /* Or what the driver gave back unseen would count as what this takes. */
    pools_true_up(place);
    graph_memory_true_up_place(place);
    guesses_settle(place, true);
    uint64_t last = of == OVERHEAD_CONTEXT ? last_context_bytes(overhead, place) : 0,
             ahead = last & ~CONTEXT_GUESSED;
    overhead->last_guessed = last & CONTEXT_GUESSED;
    ahead += asked_bytes;
    overhead->last_bytes = ahead;
    if (charge_reclaiming(place, kind_of(overhead), ahead, last & CONTEXT_GUESSED ? NULL : function)
        != CUDA_SUCCESS) {
        if (!overhead->last_guessed)
            return CUDA_ERROR_OUT_OF_MEMORY;
        ahead = 0; /* it is measured once more before it is refused */
        looks_call_begins(place);
    }
    overhead->calls = looks_measured_begins(place);
    overhead->place = place;
    overhead->charged.bytes = ahead;
    /* Managed memory is charged whether or not NVML counts it: what it hides is not what this takes. */
    int64_t hidden = -(int64_t)looks_managed_bytes(place);
    overhead->quiet = look(place, true, false, &overhead->before, NULL);
    int64_t before = overhead->before.uncharged + (int64_t)ahead;
    overhead->uncharged_before = before > hidden ? before : hidden;
    if (!overhead->before.now.device_known) /* nothing will be measured */
        stand_back(overhead);
    return CUDA_SUCCESS;
}

/* What it cost is charged, or it has failed. */
static void leave(struct overhead *overhead)
{
    stand_back(overhead);
    if (overhead->calls)
        looks_measured_ended(overhead->place);
    overhead->first = false;
    overhead->calls = 0;
}

void overhead_failed(struct overhead *overhead)
{
    guesses_ended(overhead->place, kind_of(overhead), overhead->charged);
    overhead->charged = (struct cost){0};
    leave(overhead);
    if (overhead->unsure) /* and charged by who saw it meanwhile, perhaps */
        guesses_reconcile(overhead->place, true);
}

/* Nobody says what is in use before there is a context, where NVML is not. */
static uint64_t unknown_context_bytes(const struct figures *now)
{
    log_warning("a CUDA context counts as %d MiB, as NVML does not tell it; with "
                "NVIDIA_DRIVER_CAPABILITIES=compute,utility it does",
                (int)(CONTEXT_UNKNOWN_BYTES / MIB));
    return now->device_known ? least(now->device, CONTEXT_UNKNOWN_BYTES) : CONTEXT_UNKNOWN_BYTES;
}

/* By how much more of the GPU is in use, but for what this process was charged meanwhile. */
static int64_t device_grown(const struct look *seen, const struct figures *before, bool quiet)
{
    int64_t grown = (int64_t)(seen->now.device - before->device);
    return quiet ? grown - (int64_t)(seen->now.held_after - before->held_after) : grown;
}

uint64_t overhead_given_back(struct overhead *overhead)
{
    struct look seen;
    const struct figures *before = &overhead->before.now;
    bool quiet = look(overhead->place, false, false, &seen, before); /* this call is not counted any more */
    int64_t left = device_grown(&seen, before, quiet) + (quiet ? (int64_t)overhead->charged.bytes : 0);
    int64_t beyond = (int64_t)overhead->beyond_bytes;
    if (left > beyond) /* others took more meanwhile: it says nothing of the code */
        return MODULE_MOST_BYTES;
    return left < 0 ? overhead->beyond_bytes : left < beyond ? (uint64_t)(beyond - left) : 1;
}

/* What was taken, or (negative) given back. Beside other threads, which make it less by what they are in the
 * middle of, no less than what was charged ahead, or than what came meanwhile. */
static int64_t measure(struct overhead *overhead)
{
    int place = overhead->place;
    const struct figures *before = &overhead->before.now;
    uint64_t managed = looks_managed_bytes(place);
    struct look seen;
    const struct figures *now = &seen.now;
    bool quiet = look(place, true, false, &seen, before), alone = quiet && seen.calls == overhead->calls;
    bool apart =
        alone || (quiet && overhead->quiet); /* what others did is on both sides of what is compared */
    if (now->listed && !before->listed)
        figures_listed_by_own_pid(true);
    /* While what was guessed before stands, NVML's figure says nothing of this call alone; nor of one of two
     * at once, either of which may take what both made for its own. */
    bool known = now->listed && figures_pid_is_known() && !guesses_unsettled(place);
    /* Pages that come to the GPU are no more than there are. */
    overhead->doubtful_bytes = known && looks_one_measures(&seen) ? managed : LEDGER_MOST_BYTES;
    overhead->guessed = overhead->doubtful_bytes || !apart;
    overhead->unsure = overhead->guessed && now->listed
        && (int64_t)region_used_bytes(place) + seen.uncharged > (int64_t)limits_memory_bytes(place);
    int64_t last = (int64_t)overhead->last_bytes;
    bool told = before->device_known && (now->device_known || now->come);
    if (!known && !last && !told && overhead->of == OVERHEAD_CONTEXT)
        return (int64_t)unknown_context_bytes(now);
    int64_t grown = known ? (int64_t)(now->own - before->own) : device_grown(&seen, before, quiet);
    bool module = overhead->of == OVERHEAD_MODULE;
    int64_t most = module ? MODULE_MOST_BYTES : CONTEXT_MOST_BYTES;
    if (!known && module && !last && grown > most && before->device_known)
        overhead->beyond_bytes = (uint64_t)grown;
    bool may_shrink = alone && overhead->of == OVERHEAD_PART_OF_CONTEXT;
    grown = grown < 0 && !may_shrink ? 0 : grown > most ? most : grown;
    if (known) {
        int64_t cost = seen.uncharged + (int64_t)overhead->charged.bytes - overhead->uncharged_before;
        int64_t more = seen.uncharged - overhead->before.uncharged, floor = more < grown ? more : grown;
        floor = last ? last : floor;
        int64_t hidden = overhead->uncharged_before < 0 ? -overhead->uncharged_before : 0;
        if (hidden && last && !overhead->last_guessed && cost > last && cost - last <= hidden)
            return last; /* pages of it have come to the GPU meanwhile */
        int64_t own = (int64_t)(now->own - before->own), without = cost - hidden;
        if (hidden && cost > own) /* or another thread has freed some */
            cost = own > without ? own : without;
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
        looks_call_ended(place); /* that is counted already */
    if (overhead->of == OVERHEAD_CONTEXT && cost
        && (!guessed || overhead->sure
            || (first ? fits : overhead->last_guessed && cost <= overhead->last_bytes)))
        region_set_context_bytes(place, guessed && !overhead->sure ? cost | CONTEXT_GUESSED : cost);
    if (overhead->of == OVERHEAD_CONTEXT && guessed)
        guesses_context(place, cost);
    if (!fits && lenient) {
        uint64_t left = limits_memory_bytes(place) - region_used_bytes(place);
        uint64_t sure = more > overhead->doubtful_bytes ? more - overhead->doubtful_bytes : 1;
        more = left >= sure && left < more ? left : more; /* not even that is left: refused */
        fits = charge(place, kind, more, 0, overhead->function) == CUDA_SUCCESS;
        overhead->unsure = true;
    }
    if (!fits)
        return false;
    if (cost < charged)
        guesses_ended(place, kind, (struct cost){charged - cost, 0});
    else
        cost = charged + more;
    overhead->charged = (struct cost){cost, guessed ? cost : 0};
    if (guessed)
        guesses_made(place, cost);
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
    bool quiet = look(place, false, true, &seen, NULL);
    for (int tries = 0; !quiet && tries < OTHERS_TRIES; tries++) {
        monotonic_sleep_until(monotonic_ns() + OTHERS_TRY_NS);
        quiet = look(place, false, true, &seen, NULL);
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
