/* What measured launches cost, once the driver tells when they ran. */
#include "credit.h"
#include "event_time.h"
#include "gpu_cost.h"
#include "gpu_sweep.h"
#include "gpu_traces.h"
#include "region.h"
#include "region_file.h"
#include "settings.h"

#include <string.h>

enum { MOST_UNCLEAR = 16 }; /* launches in a row */
enum { LEGACY_LATELY = 1000 }; /* launches measured since one on the legacy stream */
enum { FIRSTS_BITS = 6 }; /* places for streams, one thread's stack being small */
enum { MOST_ENDED = PAST_RUNS / 2 }; /* in one look, so that it is known what ran beside them */

#define PUT_ASIDE_NS 100000 /* of calls during which the thread did not run, or waited */
#define WAITS_NS MS_NS /* beyond what was expected, a launch may wait for one on another GPU, */
#define APART_NS (200 * MS_NS) /* few kernels take so long, and few processes start together so exactly */
#define OVERLONG_NS (5000 * MS_NS) /* and beyond twice that, for any later one */
#define AT_ONCE_NS 20000 /* after an event was recorded on an idle stream, it is done */

/* When what ran at `until_ns` began to, its first event having been done at `from_ns`: not before it was
 * launched. On a stream that was idle the event was done at once, long before the launch if that took long,
 * as the first of a kind does while its code is loaded. `called`: it may have run while the launch was made.
 */
static int64_t began_ns(const struct trace *trace, int64_t from_ns, int64_t until_ns, bool called)
{
    int64_t least_ns = called ? trace->began_ns : trace->launched_ns;
    least_ns = least_ns < until_ns ? least_ns : until_ns;
    return from_ns > least_ns ? from_ns : least_ns;
}

/* Whether the launch was over when its second event was recorded, so that this does not tell when it ended.
 * Calls that take long once leave it open what it cost (`edge`). Where they do time after time, launches are
 * waited for. */
static bool was_over(struct measured_lane *lane, struct trace *trace, int64_t until_ns)
{
    bool over = until_ns < trace->recorded_ns + AT_ONCE_NS;
    bool unclear =
        over && (trace->recorded_ns - trace->began_ns >= PUT_ASIDE_NS || until_ns <= trace->launched_ns);
    lane->unclear = unclear ? lane->unclear + 1 : 0;
    if (over && (settings()->launches_wait || lane->unclear > MOST_UNCLEAR))
        return true;
    trace->edge |= unclear;
    return false;
}

/* It has ended: when it ran. False when that cannot be told. */
static bool measure(struct measured_lane *lane, struct trace *trace)
{
    int64_t took_ns;
    if (!event_elapsed(trace->begin, trace->end, &took_ns) || took_ns < 0)
        return false;
    int64_t from_ns = gpu_probe_time(trace_probe(lane, trace), trace->begin);
    bool timed = from_ns != 0;
    if (!timed)
        from_ns = trace->began_ns;
    int64_t until_ns = from_ns + took_ns;
    trace->queued = from_ns > trace->launched_ns;
    /* Our clock is set by events, too: those that are handled at once. So it is as late as the second one. */
    from_ns = until_ns - event_cost_without_ns(&trace_probe(lane, trace)->events, took_ns);
    if (timed)
        from_ns = began_ns(trace, from_ns, until_ns, was_over(lane, trace, until_ns));
    else if (trace->launched_ns - trace->began_ns >= PUT_ASIDE_NS)
        trace->edge = true;
    if (!trace->running_since_ns)
        trace_runs(lane, trace, from_ns);
    lane->in_turn = past_stream_only(trace->stream) ? lane->in_turn - (lane->in_turn > 0) : LEGACY_LATELY;
    trace->running_since_ns = from_ns;
    trace->ran_until_ns = until_ns;
    trace->met = credit_ended(&lane->lane, (uint64_t)from_ns, (uint64_t)until_ns, trace->waits);
    if (trace->on_credit)
        loose_store(&lane->lane.credit_ended_ns, (uint64_t)until_ns);
    past_ended(&lane->past, trace->run, from_ns, until_ns);
    return true;
}

/* What the first launch of a kind costs. */
static void learn_guess(struct lane *lane, int64_t own)
{
    int64_t was_ns = loose_load(&lane->guess_ns), is_ns = was_ns ? was_ns + (own - was_ns) / 8 : own;
    loose_store(&lane->guess_ns, is_ns > 1 ? is_ns : 1);
}

/* Whether it says only that its kind varies: of a sweep, what it costs is known by now, and what waited for a
 * launch on another GPU took as long as that. Where such an end is not seen but likely, only asked of what is
 * charged by what it took. */
static bool tells_nothing(struct measured_lane *lane, const struct trace *trace, struct estimate *estimate)
{
    return (trace->sweep && !trace->always)
        || (trace->waits
            && (trace->met
                || (estimate && estimate_measures_all(estimate)
                    && credit_was_given(&lane->lane, trace->running_since_ns))));
}

/* Without it. While the first of a kind runs its estimate is how long it has. */
static int64_t known_ns(const struct trace *trace, struct estimate *estimate)
{
    return estimate && loose_load(&estimate->samples) ? loose_load(&estimate->ns) : trace->expected_ns;
}

static bool has_more_gpus(void)
{
    return region_has_device(region_mapped(), 1);
}

/* The first of a kind that ran for so long, where it may have waited unseen, as programs on several GPUs do
 * that start apart. The next one says. */
static bool leave_out(const struct trace *trace, struct estimate *estimate)
{
    if (trace->own_ns < APART_NS || trace->met || !has_more_gpus() || !estimate
        || loose_load(&estimate->samples) || loose_load(&estimate->parts))
        return false;
    estimate_set(estimate, trace->expected_ns);
    loose_store(&estimate->parts, 1);
    return true;
}

/* Its kind is measured always from now on: what others had beside such ones is known of the time before it
 * was one of them. Once, as kinds of a length that is about one from which on they are come and go. */
static void forget_beside(struct measured_lane *lane, const struct trace *trace, struct estimate *estimate)
{
    if (!estimate || !trace->sweep || trace->always || !estimate_measures_all_alone(estimate))
        return;
    struct doubt *doubt = trace_doubt(lane, trace->key);
    if (!doubt->always)
        memset(lane->beside, 0, sizeof lane->beside);
    doubt->always = true;
}

static void settle(struct measured_lane *lane, struct trace *trace)
{
    struct estimate *estimate = estimate_find(&gpu_time_predictor, trace->key);
    if (trace->own_ns > 2 * trace->expected_ns)
        gpu_time_drop_tokens(&lane->lane);
    /* Untold, it is charged as one that is not measured, whatever it was while it ran. */
    trace_charge(lane, trace, trace->told ? trace->own_ns : trace->expected_ns);
    if (trace->told) {
        int64_t lesson_ns = tells_nothing(lane, trace, estimate) ? known_ns(trace, estimate) : trace->own_ns;
        bool left_out = leave_out(trace, estimate);
        if (trace->guess && !left_out && !(estimate && loose_load(&estimate->samples)))
            learn_guess(&lane->lane, lesson_ns);
        uint32_t event_ns = (uint32_t)event_cost_ns(&trace_probe(lane, trace)->events);
        if (event_ns)
            loose_store(&gpu_time_predictor.event_ns, event_ns);
        if (estimate && !left_out)
            estimate_learn(&gpu_time_predictor, estimate, trace->key, lesson_ns, trace->single_ns);
        forget_beside(lane, trace, estimate);
    }
    trace_finish(lane, trace);
}

/* Charge what has been running for longer than it was charged for, while it runs; and let nothing more go on
 * what was taken from the share before that was known. Gives what it is charged for and has not run yet. */
static int64_t charge_so_far(struct measured_lane *lane, struct trace *trace, int64_t now_ns)
{
    bool contended = share_contended(lane->lane.share, (uint64_t)now_ns);
    const struct probe *probe = trace_probe(lane, trace);
    if (probe->out && probe->residency.undecided > 1)
        return 0; /* nothing of ours runs at the moment */
    int64_t beyond_most_ns = contended ? MS_NS : MS_NS / 10; /* others' turns are seen to the millisecond */
    int64_t own = trace->running_since_ns ? now_ns - trace->running_since_ns : 0;
    if (own >= beyond_most_ns) /* or it is not far beyond whatever it had of that, which takes long to ask */
        own = gpu_cost_own_ns(lane, trace, now_ns, false);
    int64_t beyond_ns = own - trace->charged_ns;
    trace->waits = own > WAITS_NS + trace->expected_ns;
    if (trace->waits)
        credit_ask(&lane->lane, now_ns);
    if (own > OVERLONG_NS + 2 * trace->expected_ns)
        loose_store(&lane->lane.share->overlong_at_ns, (uint64_t)now_ns);
    if (beyond_ns < beyond_most_ns)
        return beyond_ns < 0 ? -beyond_ns : 0;
    struct estimate *estimate = estimate_find(&gpu_time_predictor, trace->key);
    if (estimate)
        estimate_raise(estimate, trace->key, own);
    trace_charge(lane, trace, own);
    gpu_time_drop_tokens(&lane->lane);
    return 0;
}

/* Whether calls of others were made between those around it: in its stream, they ended before it does. */
static bool holds_others(const struct trace *trace)
{
    return trace->end_call > trace->begin_call + 2;
}

static void see_running(struct measured_lane *lane, struct trace *trace, int64_t now_ns)
{
    if (!trace->running_since_ns && real_cuda()->cuEventQuery(trace->begin) != CUDA_SUCCESS)
        return;
    if (!trace->running_since_ns) {
        int64_t since_ns = gpu_probe_time(trace_probe(lane, trace), trace->begin);
        trace->running_since_ns = since_ns ? began_ns(trace, since_ns, now_ns, false) : now_ns;
        trace_runs(lane, trace, trace->running_since_ns);
    }
    if (holds_others(trace))
        past_ended(&lane->past, trace->run, trace->running_since_ns, INT64_MAX);
}

/* The first launch of a stream that is not over: what was recorded there later is not either. Where two
 * streams have one place, each launch of the second is asked about. */
struct first {
    uint64_t stream;
    int64_t end_call; /* 0: none was seen */
};

/* Once, for size. */
static __attribute__((noinline)) struct first *first_of(struct first *firsts, const struct trace *trace)
{
    return &firsts[trace->stream * UINT64_C(0x9E3779B97F4A7C15) >> (64 - FIRSTS_BITS)];
}

/* Now and then: a new stream may be called as one that was destroyed, whose launches are not over. */
static bool asks_all(int64_t now_ns)
{
    return (now_ns >> 20) % 64 == 0;
}

/* Whether that was called after the end of the first one had been recorded. */
static bool is_behind(struct first *firsts, const struct trace *trace, int64_t call)
{
    const struct first *first = first_of(firsts, trace);
    return first->end_call && first->end_call < call && first->stream == trace->stream;
}

static void note_first(struct first *firsts, const struct trace *trace)
{
    struct first *first = first_of(firsts, trace);
    if (!first->end_call)
        *first = (struct first){trace->stream, trace->end_call};
}

/* The driver says whether one has ended; when, if so. Or why it is not measured any more. */
static bool see_ended(struct measured_lane *lane, struct trace *trace, int64_t now_ns)
{
    CUresult result = real_cuda()->cuEventQuery(trace->end);
    trace->ended = result == CUDA_SUCCESS;
    if ((!trace->ended && result != CUDA_ERROR_NOT_READY) || (trace->ended && !measure(lane, trace))) {
        loose_store(&lane->unreadable_at_ns, (uint64_t)now_ns);
        trace_drop(lane, trace);
    }
    return result == CUDA_SUCCESS;
}

/* What is out, in the order of its ends: what was there before, and then what came since, which is nearly so.
 */
static void order(struct measured_lane *lane)
{
    size_t count = 0;
    for (size_t i = 0; i < lane->orders; i++)
        if (lane->traces[lane->order[i]].ordered)
            lane->order[count++] = lane->order[i];
    for (struct trace *trace = NULL; (trace = trace_next(lane, trace));) {
        if (trace->ordered)
            continue;
        trace->ordered = true;
        size_t i = count++;
        for (; i > 0 && lane->traces[lane->order[i - 1]].end_call > trace->end_call; i--)
            lane->order[i] = lane->order[i - 1];
        lane->order[i] = (uint16_t)trace_place(lane, trace);
    }
    lane->orders = count;
}

/* See what has ended, then what runs: what ran beside something that has ended must be known by then. */
static bool look_at_traces(struct measured_lane *lane, int64_t now_ns)
{
    struct first firsts[1 << FIRSTS_BITS] = {{0}};
    int ended = 0;
    order(lane);
    for (size_t i = 0; i < lane->orders; i++) {
        struct trace *trace = &lane->traces[lane->order[i]];
        if (trace->ended) /* of a sweep, the rest of which is waited for, or seen by us first */
            trace->met |= credit_was_met(&lane->lane);
        else if (ended < MOST_ENDED && !is_behind(firsts, trace, trace->launch_call))
            ended += see_ended(lane, trace, now_ns);
        if (trace->ordered && !trace->ended && !asks_all(now_ns))
            note_first(firsts, trace);
    }
    for (size_t i = 0; i < lane->orders; i++) {
        struct trace *trace = &lane->traces[lane->order[i]];
        if (trace->ordered && !trace->ended && !is_behind(firsts, trace, trace->begin_call))
            see_running(lane, trace, now_ns);
    }
    return lane->orders > 0;
}

static bool can_settle(struct trace *trace, const struct sweep *sweep, int64_t now_ns)
{
    bool seen =
        !trace->waits || trace->met || !has_more_gpus() || now_ns - trace->ran_until_ns > CREDIT_SEEN_NS;
    return trace->ended && seen && (!trace->sweep || sweep->over);
}

/* When the first was launched of those that have not begun. */
static int64_t earlier(int64_t queued_ns, const struct trace *trace)
{
    bool first = !queued_ns || trace->launched_ns < queued_ns;
    return !trace->running_since_ns && first ? trace->launched_ns : queued_ns;
}

bool gpu_read_traces(struct measured_lane *lane, int64_t now_ns, bool look)
{
    bool any = look_at_traces(lane, now_ns);
    int64_t uncertain_ns = 0, queued_ns = 0;
    for (size_t i = 0; i < PROBES; i++) {
        if (gpu_probe_read(&lane->probes[i], &lane->past, i, now_ns, look))
            loose_store(&lane->lane.share->contended_at_ns, (uint64_t)now_ns);
        lane->probes[i].running = lane->probes[i].queued = 0;
    }
    gpu_cost_note_spent(lane, now_ns);
    struct sweep sweep;
    gpu_sweep_see(lane, &sweep, now_ns);
    for (struct trace *trace = NULL; (trace = trace_next(lane, trace));)
        if (can_settle(trace, &sweep, now_ns))
            gpu_cost_judge(lane, trace, &sweep, now_ns);
    if (sweep.over)
        gpu_sweep_learn(lane, &sweep);
    for (struct trace *trace = NULL; (trace = trace_next(lane, trace));) {
        if (can_settle(trace, &sweep, now_ns)) {
            settle(lane, trace);
        } else if (!trace->ended) {
            uncertain_ns += charge_so_far(lane, trace, now_ns);
            queued_ns = earlier(queued_ns, trace);
            trace->running_since_ns ? trace_probe(lane, trace)->running++
                                    : trace_probe(lane, trace)->queued++;
        } else if (trace->always && !trace->told && !trace->edge) {
            /* Of a sweep. Were what short ones did not take kept until that is over, as what long ones take
             * is not, less would be launched in it than at other times, and run beside these. */
            trace->told = true;
            trace_charge(lane, trace, gpu_cost_own_ns(lane, trace, trace->ran_until_ns, true));
        }
    }
    loose_store(&lane->lane.queued_ns, queued_ns);
    loose_store(&lane->lane.uncertain_ns, uncertain_ns);
    return any;
}
