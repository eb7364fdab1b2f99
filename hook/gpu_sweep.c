#include "gpu_sweep.h"

enum {
    OFTEN = 3, /* launches of a stream, of which fewer say nothing of what it did after, and unless one was
                  queued, before */
    ENOUGH = 8, /* launches to judge by, */
    MANY = 64, /* and where they set bounds, which chance would move one way only */
    AT_FIRST = 32, /* that sweeps have told of, each counts twice: what was known before is no mean */
    BOUNDED_MOST = 2048, /* launches that the mean of bounds goes back */
    OF_BIT = 2, /* streams that one noted by a bit may be, at most where a bound is set by them */
};

#define PATIENCE_NS (3000 * MS_NS) /* for so long the end of what was launched last is waited for, */
#define IDLE_NS (50 * MS_NS) /* and for so long another launch */
#define CONTENDED_LEAST 0.75 /* of the least that a launch may have cost, as others' turns blur it */

static struct swept *find(struct measured_lane *lane, struct sweep *sweep, uint64_t stream)
{
    struct swept *of = sweep->of;
    while (of < sweep->of + sweep->streams && of->stream != stream)
        of++;
    if (of == sweep->of + SWEEP_STREAMS)
        return of - 1;
    if (of == sweep->of + sweep->streams) {
        *of = (struct swept){.stream = stream, .launched_ns = INT64_MAX};
        of->bit = gpu_time_stream_bit(&lane->lane, stream, 0, 0);
        sweep->streams++;
    }
    return of;
}

static void note(struct swept *of, const struct trace *trace, int64_t now_ns)
{
    int64_t from_ns = trace->running_since_ns ? trace->running_since_ns : now_ns;
    int64_t until_ns = trace->ended ? trace->ran_until_ns : now_ns;
    of->launches++;
    if (trace->launched_ns < of->launched_ns) {
        of->launched_ns = trace->launched_ns;
        of->from_ns = from_ns;
        of->queued = trace->ended ? trace->queued : from_ns > trace->launched_ns;
    }
    of->until_ns = until_ns > of->until_ns ? until_ns : of->until_ns;
}

/* Whether launches that are not measured were before the first one that is, or may have been at the
 * beginning: of the former the first one was idle again when that was launched, as its thread may have waited
 * until then. */
static bool was_busy(const struct measured_lane *lane, const struct swept *of)
{
    return of->queued || loose_load(&lane->lane.busy_before) & of->bit;
}

/* Note all that are in it. Whether a thread goes on to another stream only when all before is over: as far as
 * it does here, or did in those before. Then nothing runs beside what is measured. Those of several threads
 * may be one after the other by chance. */
static bool note_all(struct measured_lane *lane, struct sweep *sweep, int64_t now_ns)
{
    const struct trace *before = NULL;
    int64_t until_ns = 0;
    bool one_by_one = true;
    for (size_t i = 0; i < lane->orders; i++) {
        const struct trace *trace = &lane->traces[lane->order[i]];
        if (!trace->sweep)
            continue;
        struct swept *of = find(lane, sweep, trace->stream);
        note(of, trace, now_ns);
        if (before && trace->stream != before->stream)
            one_by_one &= trace->turn == before->turn && trace->launched_ns >= until_ns;
        until_ns = of->until_ns > until_ns ? of->until_ns : until_ns;
        before = trace;
    }
    int in_row = loose_load(&lane->lane.one_by_one);
    if (sweep->streams > 1)
        in_row = !one_by_one ? 0 : in_row < ONE_BY_ONE ? in_row + 1 : ONE_BY_ONE;
    loose_store(&lane->lane.one_by_one, in_row);
    return in_row == ONE_BY_ONE;
}

/* When every stream was being measured. */
static void find_window(struct measured_lane *lane, struct sweep *sweep)
{
    for (int i = 0; i < sweep->streams; i++) {
        const struct swept *of = &sweep->of[i];
        if (of->launches < OFTEN && !was_busy(lane, of)) {
            int64_t known_ns = of->until_ns > sweep->went_on_ns ? of->until_ns : sweep->went_on_ns;
            sweep->until_ns = known_ns < sweep->until_ns ? known_ns : sweep->until_ns;
            continue;
        }
        if (of->from_ns > sweep->from_ns)
            sweep->from_ns = of->from_ns;
        if (of->queued && of->from_ns > sweep->queued_until_ns)
            sweep->queued_until_ns = of->from_ns;
        sweep->until_ns = of->until_ns < sweep->until_ns ? of->until_ns : sweep->until_ns;
    }
}

/* Which launches to judge: what began by the time that a launch takes before the end has mostly ended by
 * then. As long as nothing else was launched after the sweep, that is not the end. */
static void find_last(struct measured_lane *lane, struct sweep *sweep)
{
    int64_t took_ns = 0, ended = 0;
    for (struct trace *trace = NULL; (trace = trace_next(lane, trace));) {
        if (!trace->sweep || !trace->ended)
            continue;
        took_ns += trace->ran_until_ns - trace->running_since_ns;
        ended++;
    }
    if (sweep->went_on_ns > sweep->until_ns)
        sweep->until_ns = sweep->went_on_ns;
    sweep->last_ns = sweep->until_ns;
    if (sweep->until_ns < INT64_MAX && ended)
        sweep->last_ns -= took_ns / ended;
}

/* Streams in use that have no launch in it, by their bits. */
static uint64_t others(const struct measured_lane *lane, const struct sweep *sweep)
{
    uint64_t bits = loose_load(&lane->lane.streams_seen) | loose_load(&lane->lane.streams_seen_before);
    for (int i = 0; i < sweep->streams; i++)
        bits &= ~sweep->of[i].bit;
    return bits;
}

/* All that may have run, beside what was measured: what was queued on each stream before it, what was
 * launched there later, and streams of which none was measured, as a thread whose queues are full launches
 * nothing. */
static void find_most(struct measured_lane *lane, struct sweep *sweep)
{
    struct past *most = &lane->most;
    *most = lane->past;
    for (int i = 0; i < sweep->streams; i++) {
        const struct swept *of = &sweep->of[i];
        if (was_busy(lane, of))
            past_ended(most, past_began(most, of->stream, 0), 0, of->from_ns);
        if (sweep->went_on_ns < INT64_MAX)
            past_began(most, of->stream, of->until_ns > sweep->went_on_ns ? of->until_ns : sweep->went_on_ns);
    }
    for (int left = OF_BIT * sweep->others; left > 0; left--)
        past_began(most, UINT64_MAX - (uint64_t)left, 0);
}

static bool is_judged(const struct sweep *sweep, const struct trace *trace)
{
    return trace->running_since_ns >= sweep->from_ns && trace->running_since_ns < sweep->last_ns;
}

int64_t gpu_sweep_single_ns(const struct sweep *sweep, const struct trace *trace, int64_t own,
                            int64_t expected_ns)
{
    int unknown = sweep->others;
    for (const struct swept *of = sweep->of; of < sweep->of + sweep->streams; of++)
        unknown += of->from_ns > trace->running_since_ns;
    bool far = 2 * own > ESTIMATE_FAR * expected_ns;
    return far && 2 * own <= ESTIMATE_FAR * expected_ns * (1 + unknown) ? expected_ns : own;
}

bool gpu_sweep_saw(const struct sweep *sweep, const struct trace *trace)
{
    return trace->sweep && sweep->together && trace->running_since_ns >= sweep->queued_until_ns
        && trace->running_since_ns < sweep->last_ns && trace->ran_until_ns <= sweep->until_ns;
}

/* Whether launches that are not measured may lie between its events: other threads went on, perhaps in its
 * stream, before this one had recorded the second one. How many there are is not known. */
static bool was_gone_on_in(struct measured_lane *lane, const struct trace *trace)
{
    int64_t call = loose_load(&lane->lane.went_on_call);
    return call && trace->begin_call < call && trace->end_call >= call;
}

/* It is waited for no more, and tells nothing. */
static void let_go(struct measured_lane *lane, struct trace *trace)
{
    trace->edge |= !trace->always;
    trace->sweep = 0;
    atomic_fetch_sub(&lane->lane.sweep_out, 1);
}

void gpu_sweep_see(struct measured_lane *lane, struct sweep *sweep, int64_t now_ns)
{
    int64_t last_ns = 0, went_on_ns = (int64_t)loose_load(&lane->lane.went_on_at_ns);
    int judged = 0, early = 0;
    bool running = false;
    for (struct trace *trace = NULL; (trace = trace_next(lane, trace));) {
        if (!trace->sweep)
            continue;
        if (trace->sweep <= lane->swept_ns) { /* it comes late: what runs beside it now is not measured */
            let_go(lane, trace);
            continue;
        }
        if (!last_ns) /* there may be none but of kinds that are always measured, which do not put off its end
                       */
            last_ns = (int64_t)trace->sweep;
        if (trace->always)
            continue;
        last_ns = trace->launched_ns > last_ns ? trace->launched_ns : last_ns;
        running |= !trace->ended;
    }
    int64_t patience_ns = running ? PATIENCE_NS : loose_load(&lane->lane.sweep_left) > 0 ? IDLE_NS : 0;
    sweep->over = last_ns && now_ns - last_ns >= patience_ns;
    if (!sweep->over)
        return;
    lane->swept_ns = loose_load(&lane->lane.swept_at_ns);
    atomic_store(&lane->lane.sweep_left, 0);
    *sweep = (struct sweep){.over = true, .until_ns = INT64_MAX};
    sweep->went_on_ns = went_on_ns ? went_on_ns : INT64_MAX;
    sweep->contended = share_contended(lane->lane.share, (uint64_t)now_ns);
    bool one_by_one = note_all(lane, sweep, now_ns);
    find_window(lane, sweep);
    if (one_by_one)
        sweep->from_ns = sweep->queued_until_ns = 0;
    find_last(lane, sweep);
    for (struct trace *trace = NULL; (trace = trace_next(lane, trace));) {
        if (trace->sweep && !trace->ended)
            let_go(lane, trace);
        else if (trace->sweep)
            judged += is_judged(sweep, trace), early += trace->running_since_ns < sweep->last_ns;
    }
    uint64_t unseen = one_by_one ? 0 : others(lane, sweep);
    sweep->others = __builtin_popcountll(unseen);
    sweep->together = judged >= ENOUGH && !(unseen & loose_load(&lane->lane.busy_before));
    if (!sweep->together) {
        sweep->from_ns = 0;
        if (early < MANY)
            sweep->until_ns = sweep->last_ns = INT64_MAX;
    }
    find_most(lane, sweep);
}

/* Streams of its context that ran at the end, itself among them. */
static int running_beside(const struct sweep *sweep, uint64_t stream)
{
    int running = 0;
    for (const struct swept *of = sweep->of; of < sweep->of + sweep->streams; of++)
        running += past_context(of->stream) == past_context(stream) && of->launched_ns < sweep->until_ns
            && of->until_ns >= sweep->until_ns;
    return running;
}

void gpu_sweep_judge(struct measured_lane *lane, struct sweep *sweep, struct trace *trace)
{
    int64_t from_ns = trace->running_since_ns, until_ns = trace->ran_until_ns;
    if (trace->whole && lane->in_turn)
        sweep->had_ns +=
            (double)past_had_ns(&lane->past, trace->run, sweep->from_ns, sweep->until_ns, trace->part_ns);
    trace->told &= until_ns > from_ns && is_judged(sweep, trace) && !was_gone_on_in(lane, trace);
    if (!trace->told || (sweep->together && until_ns <= sweep->until_ns))
        return;
    double part_ns = trace->part_ns < 1 ? 1 : (double)trace->part_ns;
    /* Later, launches that were not measured ran beside it, as many as before. */
    int running = running_beside(sweep, trace->stream);
    int64_t known_ns = until_ns < sweep->until_ns ? until_ns : sweep->until_ns;
    const struct past *past = sweep->together ? &lane->past : &lane->most;
    double least_ns = (double)past_part_ns(past, trace->stream, from_ns, known_ns)
        + (double)(until_ns - known_ns) / (running ? running : 1);
    trace->least_ns = (double)trace->own_ns * least_ns / part_ns;
    if (sweep->together && least_ns < part_ns)
        trace->single_ns = trace->own_ns = (int64_t)trace->least_ns;
    if (sweep->together && until_ns - known_ns > known_ns - from_ns && trace->own_ns < trace->expected_ns)
        trace->told = false; /* what ran beside it may have ended soon after */
}

/* What a kind is now expected to cost. What its first launches were measured to, beside others that were not,
 * is far too much. */
static void learn(struct estimate *estimate, int *swept, double ns, double count)
{
    double was_ns = loose_load(&estimate->ns), most_ns = (double)ESTIMATE_LONGER * was_ns;
    double weight = *swept < AT_FIRST ? 2 * count : count;
    int told = (int)(count + 0.999);
    if (ns < most_ns)
        ns = was_ns + (ns - was_ns) * weight / (weight + *swept);
    *swept = *swept + told < SWEPT_MOST ? *swept + told : SWEPT_MOST;
    estimate_set(estimate, (int64_t)ns);
}

/* The bounds that sweeps set are of the launches in them: where a kind varies, its mean is within theirs.
 * Unless it is far above, as of one that has become longer. */
static void bound(struct doubt *doubt, double *least_ns, double *most_ns, double expected_ns, int told)
{
    if (*least_ns > 2 * expected_ns)
        doubt->bounded = 0;
    doubt->bounded += told;
    double weight = (double)told / doubt->bounded;
    if (doubt->bounded > BOUNDED_MOST)
        doubt->bounded = BOUNDED_MOST;
    *least_ns = doubt->least_ns += (*least_ns - doubt->least_ns) * weight;
    *most_ns = doubt->most_ns += (*most_ns - doubt->most_ns) * weight;
}

/* How much of the launch was in the window of the sweep. */
static double within(const struct sweep *sweep, const struct trace *trace)
{
    int64_t from_ns = trace->running_since_ns, until_ns = trace->ran_until_ns, took_ns = until_ns - from_ns;
    from_ns = from_ns > sweep->from_ns ? from_ns : sweep->from_ns;
    until_ns = until_ns < sweep->until_ns ? until_ns : sweep->until_ns;
    return until_ns > from_ns ? (double)(until_ns - from_ns) / (double)took_ns : 0;
}

/* Others' turn that was not seen may be in one of its launches, which would be the mean of all. A kind that
 * does take so long from now on does so in the next sweep, too. */
static bool is_first_so_long(const struct sweep *sweep, struct doubt *doubt, double ns, double expected_ns)
{
    bool was = doubt->longer;
    doubt->longer =
        sweep->contended && doubt->swept >= AT_FIRST && ns > (double)ESTIMATE_LONGER * expected_ns;
    return doubt->longer && !was;
}

/* Those of the kind of the first of them. Launches of several threads may be in one stream, and streams may
 * wait for each other: so what each is told is right beside what the others are, and together they are given
 * what the GPU worked. The first time, that is only added up. */
static void learn_kind(struct measured_lane *lane, struct sweep *sweep, struct trace **kind, int count,
                       bool add_up)
{
    struct estimate *estimate = estimate_find(&gpu_time_predictor, kind[0]->key);
    double ns = 0, least_ns = 0, launches = 0, known = 0, known_ns = 0,
           expected_ns = estimate ? loose_load(&estimate->ns) : 0;
    int told = 0;
    for (int i = 0; i < count; i++) {
        double part = within(sweep, kind[i]);
        launches += kind[i]->whole ? part : 0;
        if (kind[i]->told) {
            ns += (double)kind[i]->own_ns;
            least_ns += kind[i]->least_ns;
            double own_ns = (double)kind[i]->own_ns;
            /* Of one that goes on for long after it little is known. If the others counted by their part as
             * well, long ones would count less than short ones. */
            double counts = part < 0.5 ? part : 1;
            known += counts;
            known_ns += counts * own_ns;
            told++;
        }
    }
    ns = told ? ns / told : expected_ns;
    if (add_up)
        sweep->told_ns += launches * ns;
    if (add_up || !told)
        return;
    double all = sweep->had_ns > 0 && sweep->told_ns > 0 ? sweep->had_ns / sweep->told_ns : 1;
    ns *= all;
    known_ns *= all;
    least_ns *= all / told;
    struct doubt *doubt = trace_doubt(lane, kind[0]->key);
    bool says = true;
    if (!sweep->together) {
        least_ns *= sweep->contended ? CONTENDED_LEAST : 1;
        if (!sweep->contended) /* others' turns blur each, one way and the other */
            bound(doubt, &least_ns, &ns, expected_ns, told);
        says = expected_ns < least_ns || expected_ns > ns;
        ns = expected_ns < least_ns ? least_ns : ns;
    }
    for (int i = 0; i < count; i++) {
        if (!kind[i]->told)
            continue;
        kind[i]->told = says;
        kind[i]->own_ns = (int64_t)ns;
        if (!sweep->together)
            kind[i]->single_ns = (int64_t)ns;
    }
    int steady = SWEPT_MOST; /* a bound says little of what is within */
    if (says && estimate && !is_first_so_long(sweep, doubt, ns, expected_ns))
        learn(estimate, sweep->together ? &doubt->swept : &steady, sweep->together ? known_ns / known : ns,
              sweep->together ? known : told);
}

static void learn_kinds(struct measured_lane *lane, struct sweep *sweep, bool add_up)
{
    struct trace *kind[SWEEP_MOST], *all[SWEEP_MOST];
    int left = 0;
    for (struct trace *trace = NULL; left < SWEEP_MOST && (trace = trace_next(lane, trace));)
        if (trace->sweep && !trace->always)
            all[left++] = trace;
    while (left > 0) {
        uint64_t key = all[0]->key;
        int count = 0, others = 0;
        for (int i = 0; i < left; i++)
            if (all[i]->key == key)
                kind[count++] = all[i];
            else
                all[others++] = all[i];
        learn_kind(lane, sweep, kind, count, add_up);
        left = others;
    }
}

void gpu_sweep_learn(struct measured_lane *lane, struct sweep *sweep)
{
    if (sweep->together)
        beside_learn(&lane->beside[sweep->contended], &lane->past, sweep->from_ns, sweep->until_ns);
    learn_kinds(lane, sweep, true);
    learn_kinds(lane, sweep, false);
}
