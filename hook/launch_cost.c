#include "launch_cost.h"
#include "monotonic.h"

enum {
    FEW_SAMPLES = ESTIMATE_SAMPLES,
    IN_VAIN_MOST = 128, /* that go out though others were waited for in vain: each has its measurement */
    GUESSES_MEASURED = 96, /* like GUESSES, of kinds that are little known but were measured */
    SWEEP_OF_STREAM = 40, /* launches of each stream that are measured in a row, if not too many together */
    SWEEP_OF_FEW = 220, /* of all together, where few are launched; else SWEEP_MOST */
    BESIDE = 3, /* times as long a launch takes beside others as alone, or longer */
};

#define BEHIND_MOST 8 /* measurements, */
#define BEHIND_FROM_NS 10000 /* of launches that take far longer than events */
#define IN_SERIES_NS (50 * MS_NS) /* after one that is always measured; */
#define FIRSTS_NS (5 * MS_NS) /* and after one of the first of a kind */
#define MEASURE_EVERY_NS (2 * MS_NS) /* about 4 us of CPU each: 0.2 % */
#define SWEEP_EVERY_NS (60 * MS_NS)
#define SWEEP_VARYING_EVERY_NS (17 * MS_NS) /* of GPU time: one in 6 launches of 8 us */
#define SWEEP_LONG_NS (8 * MS_NS)
#define SWEEP_MOST_NS (500 * MS_NS) /* who had the GPU is known for a second only (residency.h) */
#define IN_VAIN_NS MS_NS /* is charged for one of which nothing is known, before it is known */
#define PATIENCE_NS (500 * MS_NS) /* after which a launch goes out on what is known */
#define GUESSED_NS (4 * MS_NS) /* of launches whose cost was guessed may be out */

/* --- what it costs -------------------------------------------------------------------------------------- */

void launch_cost_drop_guess(struct launch *launch)
{
    if (launch->guess)
        atomic_fetch_sub(&launch->lane->guesses, 1);
    launch->guess = false;
}

/* Launches of a kind of which little is known may be long, so no more of them are let out at once than are
 * worth a few turns of the GPU by what the last ones cost; fewer of what was never measured. */
static int64_t most_guesses(int64_t known_ns, bool never)
{
    int64_t most = known_ns ? GUESSED_NS / known_ns : 1, room = never ? GUESSES : GUESSES_MEASURED;
    return most < 1 ? 1 : most > room ? room : most;
}

/* The first few of a kind say little of its others: nothing, if they differ. Of one that was never measured a
 * second launch would be as little known as the first, and as long. */
static int64_t most_guesses_of_kind(int64_t samples, bool varies)
{
    return varies || !samples ? 1 : 2 * samples;
}

static bool guess(struct launch *launch, int64_t most)
{
    struct lane *lane = launch->lane;
    launch->guess = atomic_fetch_add(&lane->guesses, 1) < most;
    if (!launch->guess)
        atomic_fetch_sub(&lane->guesses, 1);
    return launch->guess;
}

/* How many may be out for a launch that does not wait for others to be measured; 0: it waits. One does that
 * has waited for long; and as long as the first of those that were queued then has not begun, which may wait
 * for something itself, no other one waits in vain. */
static int64_t most_in_vain(const struct launch *launch)
{
    struct lane *lane = launch->lane;
    uint64_t queued_ns = (uint64_t)loose_load(&lane->queued_ns);
    if (launch->asked_ns < (uint64_t)PATIENCE_NS)
        return queued_ns && loose_load(&lane->in_vain_ns) == queued_ns ? IN_VAIN_MOST : 0;
    loose_store(&lane->in_vain_ns, queued_ns);
    return INT64_MAX;
}

/* Of a process of which nothing was measured yet. Who waited for the budget looked at it when it last grew.
 */
static int64_t first_ns(const struct lane *lane)
{
    const struct share *share = lane->share;
    bool beside = share_another_looks(&share->least_had, &lane->turn, loose_load(&share->refilled_at_ns));
    return beside ? ESTIMATE_FIRST_BESIDE_NS : ESTIMATE_FIRST_NS;
}

int64_t launch_cost_ns(struct launch *launch)
{
    struct estimate *estimate = estimate_find(&gpu_time_predictor, launch->key);
    int64_t ns = estimate ? loose_load(&estimate->ns) : 0,
            samples = estimate ? loose_load(&estimate->samples) : 0;
    int64_t guess_ns = loose_load(&launch->lane->guess_ns);
    bool few = samples < FEW_SAMPLES, varies = samples && estimate_measures_often(estimate);
    int64_t most = few ? most_in_vain(launch) : 0, least_ns = most && !samples ? IN_VAIN_NS : 0;
    if (few && !most && gpu_time_guesses(launch->lane, launch->key) >= most_guesses_of_kind(samples, varies))
        return 0;
    if (few && !guess(launch, most ? most : most_guesses(samples ? ns : guess_ns, !samples)))
        return 0;
    ns = ns ? ns : guess_ns ? guess_ns : first_ns(launch->lane);
    return ns > least_ns ? ns : least_ns;
}

/* --- what is measured ----------------------------------------------------------------------------------- */

/* From now on measure all launches for a while: as many as it takes for each stream to have several. */
static void begin_sweep(struct lane *lane, uint64_t now_ns)
{
    uint64_t seen = atomic_exchange(&lane->streams_seen, 0);
    int streams = __builtin_popcountll(seen | atomic_exchange(&lane->streams_seen_before, seen));
    int launches = (streams > 1 ? streams : 2) * SWEEP_OF_STREAM;
    int most = loose_load(&lane->unswept_ns) < SWEEP_VARYING_EVERY_NS ? SWEEP_OF_FEW : SWEEP_MOST;
    launches = launches < most ? launches : most;
    int spare = atomic_exchange(&lane->always_lately, false) ? SWEEP_MOST - launches : 0;
    loose_store(&lane->busy_before, gpu_time_busy_streams(lane, now_ns));
    loose_store(&lane->swept_at_ns, now_ns);
    loose_store(&lane->unswept_ns, 0);
    loose_store(&lane->went_on_at_ns, 0);
    loose_store(&lane->sweep_spare, spare);
    atomic_store(&lane->sweep_left, launches + spare);
    atomic_store(&lane->went_on_call, 0); /* after that, or a thread that is late would note it at once */
}

/* What comes next is not measured, and pays for itself, by which that is noted. */
void launch_cost_end_sweep(struct lane *lane)
{
    gpu_time_drop_tokens(lane);
    atomic_store(&lane->sweep_left, 0);
}

/* Whether the sweep has had all its launches. What kinds that are always measured run beside comes and goes:
 * a sweep of short ones goes on for longer, so that it has seen all of that. */
static bool is_enough(const struct lane *lane, uint64_t now_ns)
{
    int left = atomic_load(&lane->sweep_left);
    int64_t lasted_ns = elapsed_ns(loose_load(&lane->swept_at_ns), now_ns);
    return left <= (lasted_ns >= SWEEP_LONG_NS ? loose_load(&lane->sweep_spare) : 0)
        || lasted_ns >= SWEEP_MOST_NS || loose_load(&lane->sweep_out) >= SWEEP_MOST;
}

/* Whether several streams of one context are in use, this one among them. */
static bool several_streams(struct lane *lane, uint64_t stream, uint64_t now_ns)
{
    uint64_t last = atomic_exchange(&lane->last_stream, stream);
    if (last && last != stream && !gpu_time_several_contexts(lane)) /* or see gpu_time.c */
        loose_store(&lane->several_streams_at_ns, now_ns);
    return gpu_time_several_streams(lane, now_ns);
}

/* Note which stream it goes to, and until when that may be busy beside others with what sweeps tell of: with
 * this, unless its kind is `always` measured, and with what it pays for, launches that pass without a look,
 * in this stream as likely as not. */
static void note_stream(struct launch *launch, uint64_t stream, uint64_t now_ns, bool always)
{
    struct lane *lane = launch->lane;
    int64_t paid_ns = always ? 0 : launch->cost_ns + loose_load(&lane->tokens_ns);
    uint64_t bit = gpu_time_stream_bit(lane, stream, now_ns, BESIDE * paid_ns);
    atomic_fetch_or(&lane->streams_seen, bit);
    int64_t series_ns = launch->always ? (always ? IN_SERIES_NS : FIRSTS_NS) : 0;
    launch->in_series = gpu_time_in_series(lane, bit, now_ns, series_ns);
    if (!launch->in_series)
        return;
    atomic_fetch_add(&lane->always_ns, launch->cost_ns);
    if (!launch->always)
        gpu_time_drop_tokens(lane); /* so that each of them looks, and is known to go there */
}

static void sweep_now_and_then(struct lane *lane, uint64_t now_ns, bool varies)
{
    bool due = elapsed_ns(loose_load(&lane->swept_at_ns), now_ns) >= SWEEP_EVERY_NS
        || (varies && loose_load(&lane->unswept_ns) >= SWEEP_VARYING_EVERY_NS);
    if (due && loose_load(&lane->sweep_left) <= 0 && loose_load(&lane->sweep_out) <= 0)
        begin_sweep(lane, now_ns);
}

/* Here comes what pays for launches that pass without a look, before any of them does. */
static void note_going_on(struct lane *lane)
{
    if (atomic_load(&lane->sweep_left) <= 0 && !atomic_load(&lane->went_on_call))
        atomic_store(&lane->went_on_call, loose_load(&lane->calls));
}

bool launch_cost_is_to_be_measured(struct launch *launch, uint64_t now_ns)
{
    struct estimate *estimate = estimate_find(&gpu_time_predictor, launch->key);
    uint64_t stream = gpu_time_stream(launch->stream, launch->per_thread);
    bool several = several_streams(launch->lane, stream, now_ns);
    note_going_on(launch->lane);
    int samples = estimate ? loose_load(&estimate->samples) : 0;
    if (samples == FEW_SAMPLES - 1) /* the last of the first ones counts as a sample */
        loose_store(&launch->lane->sampled_at_ns, now_ns);
    bool contexts = gpu_time_several_contexts(launch->lane); /* which take turns */
    bool at_once = several && loose_load(&launch->lane->one_by_one) < ONE_BY_ONE,
         beside = at_once && !contexts;
    bool few = samples < FEW_SAMPLES;
    bool alone = estimate && estimate_measures_all_alone(estimate);
    /* Beside other containers what part of its time a long one has is known by short ones of its stream, and
     * the first ones of its kind are charged all that they seem to have had. */
    launch->always = beside && (few ? !alone || !share_contended(launch->lane->share, now_ns) : alone);
    note_stream(launch, stream, now_ns, alone);
    if (few || ((!several || contexts) && estimate_measures_all(estimate)))
        return true; /* the first ones not as part of a sweep, which others of their kind would wait for */
    if (several || contexts) {
        struct lane *lane = launch->lane;
        if (launch->always) {
            loose_store(&lane->always_lately, true);
        } else {
            loose_store(&lane->unmeasured_at_ns, now_ns);
            sweep_now_and_then(lane, now_ns, estimate_measures_often(estimate));
        }
        bool sweep = atomic_load(&lane->sweep_left) > 0
            && (launch->always || atomic_fetch_sub(&lane->sweep_left, 1) > 0);
        if (sweep && is_enough(lane, now_ns))
            launch_cost_end_sweep(lane);
        launch->sweep = sweep ? loose_load(&lane->swept_at_ns) : 0;
        if (at_once || sweep || launch->always)
            return sweep || launch->always;
    } else {
        loose_store(&launch->lane->sweep_left, 0); /* the last one of a sweep, if it failed, did not end it */
    }
    /* Kinds of which all are measured would else have all the measurements. Where few launches look, as at a
     * low limit, those that do are followed by others that do, until there were as many. */
    int64_t since_ns = elapsed_ns(loose_load(&launch->lane->sampled_at_ns), now_ns);
    bool due = since_ns >= MEASURE_EVERY_NS,
         behind = since_ns >= 2 * MEASURE_EVERY_NS && launch->cost_ns >= BEHIND_FROM_NS;
    since_ns = since_ns < BEHIND_MOST * MEASURE_EVERY_NS ? since_ns : BEHIND_MOST * MEASURE_EVERY_NS;
    since_ns = behind ? since_ns : MEASURE_EVERY_NS;
    if (due)
        loose_store(&launch->lane->sampled_at_ns, now_ns - (uint64_t)(since_ns - MEASURE_EVERY_NS));
    if (behind)
        gpu_time_drop_tokens(launch->lane);
    return due || estimate_measures_often(estimate) || estimate_measures_all(estimate);
}
