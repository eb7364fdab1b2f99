#include "throttle.h"

#include <stddef.h>

extern inline struct estimate *estimate_find(struct predictor *predictor, uint64_t key);

#define NS_PARTS 256
#define LONGEST_REFILL_NS (1000 * MS_NS)
#define SHORTEST_REFILL_NS 20000
#define TURNS_NS (UINT64_C(10) * MS_NS) /* of ours and others: they are still there */
#define LEAST_LEFT_NS (3 * MS_NS) /* who wakes for its turn may be late */
#define LONGEST_SAVED_NS (UINT64_C(200000) * MS_NS) /* at a share of 999 permille */

static int64_t clamp(int64_t value, int64_t least, int64_t most)
{
    return value < least ? least : value > most ? most : value;
}

/* Once, for size: not for each launch. */
__attribute__((noinline)) static int64_t part(int64_t ns, uint32_t permille)
{
    return ns / SHARE_WHOLE_PERMILLE * permille + ns % SHARE_WHOLE_PERMILLE * permille / SHARE_WHOLE_PERMILLE;
}

static int64_t bounded(int64_t budget_ns)
{
    return clamp(budget_ns, -SHARE_DEBT_NS, SHARE_BANK_NS);
}

/* Who saw it may have looked at the clock after us; but what is far ahead is of another boot. Once, for size.
 */
__attribute__((noinline)) bool share_contended(const struct share *share, uint64_t now_ns)
{
    uint64_t at_ns = atomic_load_explicit(&share->contended_at_ns, memory_order_relaxed);
    uint64_t ahead_ns = (uint64_t)LONGEST_REFILL_NS;
    return at_ns != 0 && now_ns - at_ns + ahead_ns < ahead_ns + (uint64_t)SHARE_CONTENDED_NS;
}

/* The time since the last refill, which is then the caller's to give; 0 when there is none. */
static uint64_t claim_time(struct share *share, uint64_t now_ns)
{
    uint64_t then_ns = atomic_load_explicit(&share->refilled_at_ns, memory_order_relaxed);
    uint64_t since_ns = now_ns - then_ns;
    if (then_ns > now_ns && then_ns - now_ns < (uint64_t)LONGEST_REFILL_NS)
        return 0; /* who looked at the clock later was here before; setting it back would give time twice */
    bool possible = then_ns != 0 && then_ns <= now_ns; /* otherwise it is new, of another boot, or made up */
    if (possible && since_ns < SHORTEST_REFILL_NS)
        return 0;
    if (!atomic_compare_exchange_strong_explicit(&share->refilled_at_ns, &then_ns, now_ns,
                                                 memory_order_relaxed, memory_order_relaxed))
        return 0; /* somebody else does it */
    return !possible ? 0 : since_ns > LONGEST_REFILL_NS ? (uint64_t)LONGEST_REFILL_NS : since_ns;
}

/* Most that is saved up by now while nobody else has the GPU. */
static int64_t most_alone(const struct share *share, uint64_t now_ns, uint32_t permille)
{
    uint64_t left_ns = atomic_load_explicit(&share->caught_up_at_ns, memory_order_relaxed) - now_ns;
    return SHARE_IDLE_NS
        + (left_ns > LONGEST_SAVED_NS ? 0 : part((int64_t)left_ns, SHARE_WHOLE_PERMILLE - permille));
}

/* Most that may be saved up by now. */
static int64_t most_saved(const struct share *share, uint64_t now_ns, uint32_t permille)
{
    uint64_t contended_ns = atomic_load_explicit(&share->contended_at_ns, memory_order_relaxed);
    int64_t alone_ns = most_alone(share, now_ns, permille), most_ns = 0;
    if (permille < SHARE_WHOLE_PERMILLE && contended_ns && contended_ns <= now_ns
        && now_ns - contended_ns <= LONGEST_SAVED_NS)
        most_ns = part(SHARE_BANK_NS, permille)
            - part((int64_t)(now_ns - contended_ns), SHARE_WHOLE_PERMILLE - permille);
    return most_ns > alone_ns ? most_ns : alone_ns;
}

void share_held_up(struct share *share, uint64_t now_ns, uint64_t late_ns, uint32_t permille)
{
    if (late_ns > (uint64_t)SHARE_BANK_NS)
        return;
    late_ns = late_ns * permille / (SHARE_WHOLE_PERMILLE - permille);
    if (loose_load(&share->caught_up_at_ns) - now_ns - late_ns > LONGEST_SAVED_NS) /* earlier */
        loose_store(&share->caught_up_at_ns, now_ns + late_ns);
}

/* Of the last `since_ns`, how long the container paused: nobody looked at the budget, and nobody else was
 * seen to have the GPU. What comes due then is no more than any idle container saves: who had the GPU before
 * may have been processes of our own, which pause as well. */
static uint64_t paused(const struct share *share, uint64_t now_ns, uint64_t since_ns)
{
    uint64_t contended_ns = atomic_load_explicit(&share->contended_at_ns, memory_order_relaxed);
    uint64_t alone_ns = contended_ns < now_ns ? now_ns - contended_ns : 0;
    if (since_ns <= TURNS_NS || alone_ns <= TURNS_NS)
        return 0;
    alone_ns -= TURNS_NS;
    return alone_ns < since_ns ? alone_ns : since_ns;
}

void share_refill(struct share *share, uint64_t now_ns, uint32_t permille)
{
    uint64_t since_ns = claim_time(share, now_ns), paused_ns = paused(share, now_ns, since_ns);
    int64_t gain_ns = part((int64_t)(since_ns - paused_ns), permille),
            idle_ns = part((int64_t)paused_ns, permille);
    if (gain_ns + idle_ns <= 0)
        return;
    int64_t most_ns = most_saved(share, now_ns, permille), idle_most_ns = most_alone(share, now_ns, permille);
    int64_t was_ns = atomic_load_explicit(&share->budget_ns, memory_order_relaxed), is_ns;
    do {
        is_ns = bounded(was_ns) + gain_ns;
        if (is_ns < idle_most_ns)
            is_ns = is_ns + idle_ns < idle_most_ns ? is_ns + idle_ns : idle_most_ns;
        is_ns = clamp(is_ns, -SHARE_DEBT_NS, most_ns);
    } while (!atomic_compare_exchange_weak_explicit(&share->budget_ns, &was_ns, is_ns, memory_order_relaxed,
                                                    memory_order_relaxed));
}

int64_t share_take(struct share *share, int64_t cost_ns, int64_t chunk_ns)
{
    int64_t was_ns = atomic_load_explicit(&share->budget_ns, memory_order_relaxed), taken_ns;
    do {
        int64_t has_ns = bounded(was_ns);
        if (has_ns <= 0)
            return 0;
        taken_ns = has_ns < chunk_ns ? has_ns : chunk_ns;
        taken_ns = taken_ns < cost_ns ? cost_ns : taken_ns;
        if (atomic_compare_exchange_weak_explicit(&share->budget_ns, &was_ns, bounded(has_ns - taken_ns),
                                                  memory_order_relaxed, memory_order_relaxed))
            return taken_ns;
    } while (true);
}

void share_correct(struct share *share, int64_t ns)
{
    int64_t was_ns = atomic_load_explicit(&share->budget_ns, memory_order_relaxed);
    ns = clamp(ns, -SHARE_DEBT_NS, SHARE_DEBT_NS);
    while (!atomic_compare_exchange_weak_explicit(&share->budget_ns, &was_ns, bounded(bounded(was_ns) - ns),
                                                  memory_order_relaxed, memory_order_relaxed)) { }
}

uint64_t share_debt_ns(const struct share *share, uint32_t permille)
{
    int64_t budget_ns = bounded(atomic_load_explicit(&share->budget_ns, memory_order_relaxed));
    return budget_ns >= 0 ? 0 : (uint64_t)-budget_ns * SHARE_WHOLE_PERMILLE / (permille ? permille : 1);
}

uint64_t share_wait_ns(const struct share *share, uint32_t permille)
{
    /* Until there is a chunk, so that who wakes up can go on for a while. */
    uint64_t chunk_ns = (uint64_t)SHARE_CHUNK_NS * SHARE_WHOLE_PERMILLE / (permille ? permille : 1);
    uint64_t wait_ns = share_debt_ns(share, permille) + chunk_ns / 2;
    return wait_ns < SHARE_WAIT_LEAST_NS ? SHARE_WAIT_LEAST_NS
        : wait_ns > SHARE_WAIT_MOST_NS   ? SHARE_WAIT_MOST_NS
                                         : wait_ns;
}

/* --- whose turn it is ----------------------------------------------------------------------------------- */

/* A word says how much in its upper 44 bits, in units of 1024 ns, and when in the others, in units of about a
 * millisecond. Both wrap around: after 208 days of GPU time, and 18 minutes. */
enum { TIME_BITS = 20, HAD_UNIT_BITS = 10 };
#define TIME_MASK ((UINT64_C(1) << TIME_BITS) - 1)

static uint64_t turn_word(uint64_t had_ns, uint64_t now_ns)
{
    return (had_ns >> HAD_UNIT_BITS << TIME_BITS) | (now_ns >> TIME_BITS & TIME_MASK);
}

static bool is_of_lately(uint64_t word, uint64_t now_ns)
{
    uint64_t lately = SHARE_LATELY_NS >> TIME_BITS; /* or a little later: who left it may have a later time */
    return (((now_ns >> TIME_BITS) - word + lately) & TIME_MASK) <= 2 * lately;
}

static bool is_anothers(uint64_t word, const struct turn *turn, uint64_t now_ns)
{
    return is_of_lately(word, now_ns) && word != atomic_load_explicit(&turn->told, memory_order_relaxed);
}

bool share_another_looks(const _Atomic uint64_t *least_had, const struct turn *turn, uint64_t now_ns)
{
    return is_anothers(atomic_load_explicit(least_had, memory_order_relaxed), turn, now_ns);
}

/* How much more one has had than the word says. */
static int64_t had_beyond_ns(const struct turn *turn, uint64_t word)
{
    uint64_t had = atomic_load_explicit(&turn->had_ns, memory_order_relaxed) << (TIME_BITS - HAD_UNIT_BITS);
    return (int64_t)(had - (word & ~TIME_MASK)) >> (TIME_BITS - HAD_UNIT_BITS);
}

/* How much is saved up for who has had less. What comes due beyond SHARE_IDLE_NS is lost, and of a large
 * share it takes long to make up for what the GPU did not do meanwhile: there is more room left then. */
static int64_t most_left(uint32_t permille)
{
    return clamp(part(2 * SHARE_IDLE_NS, SHARE_WHOLE_PERMILLE - permille), LEAST_LEFT_NS,
                 SHARE_IDLE_NS - SHARE_CHUNK_NS);
}

bool share_is_anothers_turn(const struct share *share, const _Atomic uint64_t *least_had, struct turn *turn,
                            uint64_t now_ns, uint32_t permille)
{
    uint64_t word = atomic_load_explicit(least_had, memory_order_relaxed);
    uint64_t idle_at_ns = atomic_load_explicit(&turn->idle_at_ns, memory_order_relaxed);
    int64_t beyond_ns = had_beyond_ns(turn, word);
    if (!idle_at_ns || (now_ns > idle_at_ns && beyond_ns < 0)) { /* new, or it could have had more */
        atomic_store_explicit(&turn->had_ns, word >> TIME_BITS << HAD_UNIT_BITS, memory_order_relaxed);
        beyond_ns = 0;
    }
    if (beyond_ns <= SHARE_CHUNK_NS || !is_anothers(word, turn, now_ns))
        return false;
    bool waits = bounded(atomic_load_explicit(&share->budget_ns, memory_order_relaxed)) < most_left(permille);
    int64_t most_ns = waits ? SHARE_DEBT_NS : 0;
    if (beyond_ns > most_ns)
        atomic_fetch_sub_explicit(&turn->had_ns, (uint64_t)(beyond_ns - most_ns), memory_order_relaxed);
    return waits;
}

void share_tell_turn(const struct share *share, _Atomic uint64_t *least_had, struct turn *turn,
                     uint64_t now_ns, uint32_t permille)
{
    uint64_t word = atomic_load_explicit(least_had, memory_order_relaxed);
    uint64_t own = turn_word(atomic_load_explicit(&turn->had_ns, memory_order_relaxed), now_ns);
    /* As long as the budget is in debt nobody can take from it, whoever wants to. */
    atomic_store_explicit(&turn->idle_at_ns,
                          now_ns + (uint64_t)SHARE_LATELY_NS + share_debt_ns(share, permille),
                          memory_order_relaxed);
    if (had_beyond_ns(turn, word) >= 0 && is_anothers(word, turn, now_ns))
        return;
    if (atomic_compare_exchange_strong_explicit(least_had, &word, own, memory_order_relaxed,
                                                memory_order_relaxed))
        atomic_store_explicit(&turn->told, own, memory_order_relaxed);
}

unsigned share_turn_of(struct turns *all, uint64_t whose, uint64_t now_ns)
{
    unsigned first = estimate_mix(whose, 0) % SHARE_TURNS, idle = SHARE_TURNS;
    for (unsigned i = 0; i < SHARE_TURNS; i++) {
        unsigned place = (first + i) % SHARE_TURNS;
        uint64_t has = atomic_load_explicit(&all->whose[place], memory_order_relaxed);
        if (has == whose || (!has && atomic_compare_exchange_strong(&all->whose[place], &has, whose)))
            return place;
        if (atomic_load_explicit(&all->of[place].idle_at_ns, memory_order_relaxed) < now_ns)
            idle = place;
    }
    if (idle == SHARE_TURNS)
        return first;
    atomic_store(&all->whose[idle], whose);
    loose_store(&all->of[idle].idle_at_ns, 0); /* it is new */
    return idle;
}

/* --- what launches cost --------------------------------------------------------------------------------- */

struct estimate *estimate_claim(struct predictor *predictor, uint64_t key)
{
    struct estimate *found = estimate_find(predictor, key);
    struct estimate *set = predictor->sets[key >> 20 & (ESTIMATE_SETS - 1)];
    for (int way = 0; !found && way < ESTIMATE_WAYS; way++) {
        uint64_t none = 0;
        if (atomic_compare_exchange_strong(&set[way].key, &none, key) || none == key)
            found = &set[way];
    }
    if (found)
        return found;
    found = &set[key >> 40 & (ESTIMATE_WAYS - 1)];
    loose_store(&found->ns, 0);
    loose_store(&found->samples, 0);
    loose_store(&found->deviation, 0);
    atomic_store(&found->key, key);
    return found;
}

static bool is_held(int64_t deviation)
{
    return (deviation & ESTIMATE_HELD) > ESTIMATE_DEVIATES;
}

/* From which length on every launch of a kind that varies is measured: the events take something of its
 * stream as well, which nobody is charged. */
static int64_t always_from_ns(const struct predictor *predictor)
{
    int64_t ns = ESTIMATE_EVENTS * (int64_t)loose_load(&predictor->event_ns);
    return clamp(ns, ESTIMATE_VARYING_NS, ESTIMATE_EVENTS_NS);
}

/* How a kind of that length is measured that is far longer now and then, though none was seen yet. */
static void hold(const struct predictor *predictor, struct estimate *estimate, int64_t ns)
{
    int64_t flags = ns >= always_from_ns(predictor) ? ESTIMATE_ALWAYS | ESTIMATE_OFTEN
        : ns >= ESTIMATE_OFTEN_NS                   ? ESTIMATE_OFTEN
                                                    : 0;
    if (!is_held(loose_load(&estimate->deviation)))
        loose_store(&estimate->deviation, (uint16_t)(ESTIMATE_HELD / 2 | flags));
}

/* The first of a kind was far longer, or none was for long. */
static void tell_family(struct predictor *predictor, uint64_t key, bool far)
{
    atomic_bool *known = &predictor->far[key >> FAMILY_AT];
    struct estimate *estimate = predictor->sets[0], *end = estimate + (size_t)ESTIMATE_SETS * ESTIMATE_WAYS;
    if (atomic_exchange(known, far) || !far)
        return;
    for (; estimate < end; estimate++)
        if (loose_load(&estimate->key) >> FAMILY_AT == key >> FAMILY_AT && loose_load(&estimate->samples))
            hold(predictor, estimate, loose_load(&estimate->ns));
}

/* What is measured always does not go by the estimate, so when to begin and when to end must differ: an
 * estimate that is too low by chance would otherwise be gone by, and one that is too high not. A kind that is
 * long now and then is at its lowest when none was long for a while, so that one ends long after the last. */
static void learn_deviation(struct estimate *estimate, int64_t was_ns, int64_t sample_ns, int64_t samples,
                            int64_t all_from_ns)
{
    int64_t off_ns = sample_ns < was_ns ? was_ns - sample_ns : sample_ns - was_ns;
    int64_t was = loose_load(&estimate->deviation), flags = was & (ESTIMATE_ALWAYS | ESTIMATE_OFTEN);
    was -= flags;
    samples = samples > ESTIMATE_SAMPLES_OFTEN ? ESTIMATE_SAMPLES_OFTEN : samples;
    int64_t deviation = was + (clamp(off_ns * 1000 / was_ns, 0, ESTIMATE_DEVIATES) - was) / samples;
    if (is_held(was))
        deviation = was - 1;
    if (samples >= ESTIMATE_SAMPLES && 2 * sample_ns > ESTIMATE_FAR * was_ns)
        deviation = flags ? ESTIMATE_HELD : ESTIMATE_HELD / 2; /* once may be by chance */
    if (was_ns >= all_from_ns && deviation >= ESTIMATE_VARIES)
        flags = ESTIMATE_ALWAYS | ESTIMATE_OFTEN;
    else if (was_ns >= ESTIMATE_OFTEN_NS && deviation >= ESTIMATE_VARIES)
        flags |= ESTIMATE_OFTEN;
    else if (deviation < ESTIMATE_VARIES / 3 || was_ns < ESTIMATE_OFTEN_NS / 3)
        flags = 0;
    if (was_ns < all_from_ns - ESTIMATE_VARYING_NS * 2 / 3)
        flags &= ~ESTIMATE_ALWAYS;
    loose_store(&estimate->deviation, (uint16_t)(deviation | flags));
}

/* How far the mean goes back. More launches go on a low estimate than on a high one, so that what varies is
 * charged too little by the variance of its estimate, where not every launch is measured. Where every one is,
 * it is charged by itself, and what counts is that the mean is right once that ends. */
static int64_t most_samples(struct estimate *estimate, int64_t was_ns, int64_t sample_ns)
{
    int64_t deviation = loose_load(&estimate->deviation);
    if (is_held(deviation) || deviation >= ESTIMATE_ALWAYS)
        return ESTIMATE_SAMPLES_ALL;
    bool steadied = estimate_measures_often(estimate) && was_ns < ESTIMATE_LONG_NS;
    return steadied && sample_ns < ESTIMATE_LONGER * was_ns ? ESTIMATE_SAMPLES_OFTEN : ESTIMATE_SAMPLES;
}

void estimate_set(struct estimate *estimate, int64_t ns)
{
    loose_store(&estimate->ns, (uint32_t)clamp(ns, ESTIMATE_LEAST_NS, UINT32_MAX));
}

void estimate_learn(struct predictor *predictor, struct estimate *estimate, uint64_t key, int64_t ns,
                    int64_t single_ns)
{
    if (loose_load(&estimate->key) != key)
        return; /* its place is another's now */
    int64_t sample_ns = clamp(ns, -SHARE_DEBT_NS, UINT32_MAX), was_ns = loose_load(&estimate->ns);
    int64_t samples = loose_load(&estimate->samples) + 1, most = most_samples(estimate, was_ns, sample_ns);
    samples = samples > most ? most : samples;
    single_ns = clamp(single_ns, -SHARE_DEBT_NS, UINT32_MAX);
    int64_t was_parts = was_ns * NS_PARTS + loose_load(&estimate->parts);
    int64_t is_parts =
        was_ns ? was_parts + (sample_ns * NS_PARTS - was_parts) / samples : sample_ns * NS_PARTS;
    /* Less than nothing, as a turn of others was taken for one in it: others make up for that, if they are
     * measured, which below this they hardly are. */
    if (sample_ns < 0 && was_ns >= ESTIMATE_OFTEN_NS && is_parts < (int64_t)ESTIMATE_OFTEN_NS * NS_PARTS)
        is_parts = (int64_t)ESTIMATE_OFTEN_NS * NS_PARTS;
    int64_t was = loose_load(&estimate->deviation) & ESTIMATE_HELD;
    if (samples > 1 && was_ns)
        learn_deviation(estimate, was_ns, single_ns, samples, always_from_ns(predictor));
    else if (loose_load(&predictor->far[key >> FAMILY_AT]))
        hold(predictor, estimate, ns);
    int64_t is = loose_load(&estimate->deviation) & ESTIMATE_HELD;
    bool far = is_held(is) && is > was; /* it may be watched already */
    if (far || (is_held(was) && !is_held(is)))
        tell_family(predictor, key, far);
    estimate_set(estimate, is_parts / NS_PARTS);
    loose_store(&estimate->parts, (uint8_t)is_parts);
    loose_store(&estimate->samples, (uint8_t)samples);
}

void estimate_watch(const struct predictor *predictor, struct estimate *estimate)
{
    hold(predictor, estimate, loose_load(&estimate->ns));
}

void estimate_raise(struct estimate *estimate, uint64_t key, int64_t ns)
{
    if (loose_load(&estimate->key) == key && loose_load(&estimate->samples) == 0
        && ns > loose_load(&estimate->ns))
        loose_store(&estimate->ns, (uint32_t)clamp(ns, 1, UINT32_MAX));
}
