#include "guesses.h"
#include "devices.h"
#include "figures.h"
#include "limits.h"
#include "looks.h"
#include "loose.h"
#include "region.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>

#define PAGE_BYTES (UINT64_C(2) << 20) /* drivers take them whole, and NVML counts them */
#define PART_OF_LEFT                                                                                         \
    8 /* unseen, of what is left: one more process may have as much that it does not look at */

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
    _Atomic uint64_t rounded_bytes; /* at most, since NVML's figure was looked at last */
} unsaid[MAX_DEVICES];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic int64_t reconciled_at_s[MAX_DEVICES];
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
    charge_back(place, kind, has, 0);
    charge_back(place, CHARGE_CONTEXT + CHARGE_MODULE - kind, bytes - has, 0);
}

static uint64_t least(uint64_t one, uint64_t other)
{
    return one < other ? one : other;
}

void guesses_forget(void)
{
    pthread_mutex_init(&lock, NULL);
    memset(unsaid, 0, sizeof unsaid);
}

bool guesses_unsettled(int place)
{
    return unsaid[place].unsettled;
}

void guesses_context(int place, uint64_t bytes)
{
    loose_store(&unsaid[place].context_bytes, bytes);
}

void guesses_ended(int place, enum charge_kind kind, struct cost cost)
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

void guesses_made(int place, uint64_t bytes)
{
    if (place < 0)
        return;
    pthread_mutex_lock(&lock);
    unsaid[place].guessed_bytes += bytes;
    unsaid[place].unsettled = true;
    pthread_mutex_unlock(&lock);
}

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

uint64_t guesses_unseen_bytes(int place)
{
    pthread_mutex_lock(&lock);
    uint64_t bytes = place >= 0 ? doubtful(place) : 0;
    pthread_mutex_unlock(&lock);
    return bytes;
}

void guesses_settle(int place, bool at_once)
{
    if (place >= 0)
        guesses_reconcile(place,
                          at_once && atomic_load_explicit(&unsaid[place].unsettled, memory_order_relaxed));
}

bool guesses_may_round(int place, uint64_t bytes)
{
    if (place < 0)
        return false;
    /* What fits into a page more than once shares it. */
    _Atomic uint64_t *rounded_bytes = &unsaid[place].rounded_bytes;
    uint64_t most = loose_load(rounded_bytes) + least(bytes, -bytes % PAGE_BYTES);
    loose_store(rounded_bytes, most);
    return most >= PAGE_BYTES
        && most > (limits_memory_bytes(place) - region_used_bytes(place)) / PART_OF_LEFT;
}

/* All guesses are right, so what other processes go by is none any more. */
static void bear_out(int place)
{
    uint64_t context_bytes = loose_load(&unsaid[place].context_bytes);
    if (context_bytes)
        region_exchange_context_bytes(place, context_bytes | CONTEXT_GUESSED, context_bytes);
    unsaid[place].unsettled = false;
}

/* Called with the lock held: so much more is charged than NVML counts. `quiet`: that is no other thread's
 * doing. */
static void correct(int place, int64_t over, bool quiet)
{
    struct unsaid *of = &unsaid[place];
    int64_t most = (int64_t)doubtful(place), less = over > most ? most : over;
    if (less <= 0 && less > -(int64_t)PAGE_BYTES) {
        if (of->unsettled && quiet)
            bear_out(place);
        return;
    }
    uint64_t last = region_context_bytes(place);
    if (of->unsettled && (last & CONTEXT_GUESSED || last == loose_load(&of->context_bytes)))
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
    looks_corrected(place);
    give_back(place, seen ? CHARGE_MODULE : CHARGE_CONTEXT, (uint64_t)less);
}

void guesses_reconcile(int place, bool at_once)
{
    struct look seen;
    if (!figures_pid_is_known() || place < 0 || !charging() || !limits_memory_bytes(place)
        || (!is_time(place) && !at_once))
        return;
    uint64_t rounded_bytes = loose_load(&unsaid[place].rounded_bytes);
    bool quiet = look(place, false, true, &seen, NULL);
    /* Not sooner, so that other threads look as well. Of two at once one may make it far too much: that is
     * one look more. */
    loose_store(&unsaid[place].rounded_bytes, loose_load(&unsaid[place].rounded_bytes) - rounded_bytes);
    int64_t missing = seen.uncharged;
    if (!seen.now.listed)
        return;
    pthread_mutex_lock(&lock);
    if (missing < 0) { /* what others are in the middle of looks the same, and what one of them corrected */
        quiet = quiet && looks_unchanged(&seen, place);
        missing += seen.elsewhere_bytes;
        missing = quiet && missing < 0 ? missing : 0;
        quiet = quiet && !seen.elsewhere_bytes;
    }
    correct(place, -missing, quiet);
    pthread_mutex_unlock(&lock);
}
