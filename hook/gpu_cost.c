#include "gpu_cost.h"

enum { DOUBT_SAMPLES = 512, DOUBT_FIRST = 128 }; /* that doubts go back, and that are too few to judge by */
enum { LONG_BY_CHANCE = 2 }; /* that many more are long */
enum { UNSHARP_MOST = 64 }; /* in a row of a kind */

#define SHORT_NS 300000 /* kinds below cost less than what turns of others are seen to */
#define OWN_TURN_NS (2 * MS_NS) /* that others do not interrupt */
#define UNSEEN_MOST_NS (MS_NS + MS_NS / 2) /* of a short launch and what others had of its time unseen */
#define RARELY_NS 16000 /* kinds below are so seldom interrupted that how often tells little, */
#define EVIDENCE_NS (8 * MS_NS) /* and this much of long ones that looks tell whose they were */
#define STOPPED_NS (100 * MS_NS) /* nobody of ours may have been let look for so long: limits.cpu */
#define SWITCH_NS 50000 /* a time that is longer than expected by less than this holds no turn */
#define LOOKED_AT_NS (MS_NS / 5) /* kinds from here on have what others that were charged did not work */
#define LOOKED_AT_OFTEN_NS (20 * MS_NS)
#define BESIDE_NS (50 * MS_NS) /* after the last launch that was not measured, none runs any more */
#define CHUNKS_NS                                                                                            \
    (8 * MS_NS) /* others take a millisecond ahead: if they are charged nothing in so many, none runs */

/* Its part of the time that its stream had between its events: other threads may have launched there, too. */
static int64_t of_own(const struct measured_lane *lane, const struct trace *trace, int64_t ns)
{
    int64_t others_ns = trace->others_ns == OTHERS_MEASURED
        ? past_others_ns(&lane->past, trace->run, trace->begin_call, trace->end_call)
        : trace->others_ns;
    double expected_ns = (double)trace->expected_ns;
    return others_ns ? (int64_t)((double)ns * expected_ns / (expected_ns + (double)others_ns)) : ns;
}

/* Whether what runs beside it on other streams is not measured, though it is itself. */
static bool is_beside_unmeasured(const struct measured_lane *lane, const struct trace *trace)
{
    return trace->always && !lane->in_turn
        && trace->launched_ns - (int64_t)loose_load(&lane->lane.unmeasured_at_ns) < BESIDE_NS;
}

static int streams_lately(const struct measured_lane *lane)
{
    return __builtin_popcountll(loose_load(&lane->lane.streams_seen)
                                | loose_load(&lane->lane.streams_seen_before));
}

/* In order of time, as they were noted, and as of now. */
void gpu_cost_note_spent(struct measured_lane *lane, int64_t now_ns)
{
    struct lane *of = &lane->lane;
    int streams = streams_lately(lane);
    const struct probe *probe = lane->probes; /* of the only context, but for one that outlived the first */
    if (!gpu_time_several_streams(of, (uint64_t)now_ns) || (probe->context && probe->out))
        return; /* whose the GPU is now will be known */
    int64_t since_ns = lane->worked.points[lane->worked.last % WORKED_POINTS].at_ns;
    if (now_ns - since_ns >= WORKED_APART_NS) { /* or the next one counts it */
        /* Looks of threads that launch, as what they waited for has ended, find others too often. */
        int64_t away_ns = gpu_probe_away_ns(probe, since_ns - 1, now_ns, false);
        lane->worked.away_ns = away_ns < now_ns - since_ns ? away_ns : now_ns - since_ns;
    }
    for (unsigned next = loose_load(&of->noted_next); lane->noted_read != next; lane->noted_read++) {
        if (next - lane->noted_read > NOTED)
            lane->noted_read = next - NOTED;
        struct noted *noted = &lane->noted[lane->noted_read % NOTED];
        int64_t at_ns = atomic_load(&noted->at_ns);
        if (at_ns && at_ns < now_ns)
            worked_charged(&lane->worked, &lane->past, at_ns, loose_load(&noted->spent_ns), streams);
        atomic_store(&noted->at_ns, 0);
    }
    worked_charged(&lane->worked, &lane->past, now_ns, gpu_time_spent_ns(of) - loose_load(&of->always_ns),
                   streams);
}

/* What one had that runs since then, or did, of what it seems to have had; less than 0 where that is not
 * known. */
static int64_t had_beside_ns(struct measured_lane *lane, struct trace *trace, int64_t until_ns)
{
    if (trace->own_before_ns < 0)
        trace->own_before_ns = worked_own_ns(&lane->worked, trace->running_since_ns);
    return trace->own_before_ns < 0 ? -1 : worked_own_ns(&lane->worked, until_ns) - trace->own_before_ns;
}

int64_t gpu_cost_own_ns(struct measured_lane *lane, struct trace *trace, int64_t until_ns, bool seen)
{
    int64_t from_ns = trace->running_since_ns;
    trace->part_ns = past_part_ns(&lane->past, trace->stream, from_ns, until_ns);
    int64_t away_ns = gpu_probe_away_ns(trace_probe(lane, trace), from_ns, until_ns, true);
    int64_t own = trace->part_ns - away_ns;
    bool beside = is_beside_unmeasured(lane, trace),
         contended = share_contended(lane->lane.share, (uint64_t)until_ns);
    int64_t had_ns = beside && trace->expected_ns >= LOOKED_AT_NS ? had_beside_ns(lane, trace, until_ns) : -1;
    /* Beside other containers what is charged waits for turns, so that it is seldom known for certain when it
     * ran: either way it seems to have had more rather than less, and the lesser of two that err is too
     * little. */
    if (had_ns >= 0 && (!contended || had_ns - away_ns < own))
        own = contended ? (own + 3 * (had_ns - away_ns)) / 4 : had_ns - away_ns;
    /* Of long ones so many looks tell that this is the better. */
    bool had_all = until_ns - from_ns >= CHUNKS_NS && had_ns >= trace->part_ns - trace->part_ns / 16;
    if (beside && !seen
        && (had_ns < 0 || (contended && !had_all && trace->expected_ns < LOOKED_AT_OFTEN_NS))) {
        double part = beside_part(&lane->beside[contended], trace->stream);
        int64_t most_ns = past_part_of_always_ns(&lane->past, trace->stream, from_ns, until_ns) - away_ns;
        if (part > 0 && (double)most_ns * part < (double)own)
            own = (int64_t)((double)most_ns * part);
    }
    trace->whole = away_ns == 0;
    return of_own(lane, trace, own);
}

/* The least that one of a kind that is always measured cost, and what is said of its kind by that: how long
 * it took says nothing while what ran beside it is not known, but for one that was far longer. */
static int64_t single_ns(struct measured_lane *lane, const struct trace *trace, int64_t expected_ns)
{
    int64_t least_ns = trace->part_ns / (1 + streams_lately(lane));
    return 2 * least_ns > ESTIMATE_FAR * expected_ns ? least_ns : expected_ns;
}

/* Whether it may have waited for a turn of another of our contexts before it began, as nothing was before it
 * on its stream. There are many such turns, short ones too, where the contexts' queues are short. */
static bool may_have_waited(const struct measured_lane *lane, const struct trace *trace)
{
    return gpu_time_several_contexts(&lane->lane) && !trace->queued;
}

/* What waited for a turn of another of our contexts ran after what ended there last. */
static void leave_out_wait(struct measured_lane *lane, struct trace *trace)
{
    int64_t from_ns = trace->running_since_ns, until_ns = trace->ran_until_ns;
    if (!may_have_waited(lane, trace) || until_ns - from_ns > OWN_TURN_NS)
        return;
    trace->running_since_ns = past_elsewhere_ns(&lane->past, trace->stream, from_ns, until_ns);
    trace->queued = trace->running_since_ns > from_ns;
    if (trace->queued)
        past_ended(&lane->past, trace->run, trace->running_since_ns, until_ns);
}

/* The same for one of a short kind, which others' turn seldom falls into; then it is many times as long as
 * the launch, and an error in it would be the estimate. When that turn ended is known exactly, and where it
 * cut the launch is as good as random: so on average the launch took twice what was left of it. One that
 * waited was not cut. */
static int64_t short_ns(struct measured_lane *lane, const struct trace *trace, int64_t own)
{
    int64_t back_ns =
        residency_back_ns(&trace_probe(lane, trace)->residency, trace->running_since_ns, trace->ran_until_ns);
    int64_t ran_ns = trace->ran_until_ns - trace->running_since_ns;
    int64_t away_ns =
        gpu_probe_away_ns(trace_probe(lane, trace), trace->running_since_ns, trace->ran_until_ns, false);
    if (!back_ns || ran_ns - away_ns > MS_NS)
        return own;
    return back_ns < trace->ran_until_ns ? (may_have_waited(lane, trace) ? 1 : 2)
            * of_own(lane, trace, past_part_ns(&lane->past, trace->stream, back_ns, trace->ran_until_ns))
                                         : 0;
}

/* Whether it tells nothing, as it may have waited. A kind that always may have is charged what it waited,
 * too. */
static bool unsharp(struct measured_lane *lane, const struct trace *trace, bool seen)
{
    int *in_row = &trace_doubt(lane, trace->key)->unsharp;
    *in_row = !seen && may_have_waited(lane, trace) && *in_row < UNSHARP_MOST ? *in_row + 1 : 0;
    return *in_row > 0;
}

/* How long a short launch and a turn of others that was not seen may take together: looks are that often. */
static int64_t unseen_most_ns(const struct measured_lane *lane)
{
    return gpu_time_several_contexts(&lane->lane) ? UNSEEN_MOST_NS / 2 : UNSEEN_MOST_NS;
}

/* Note what looks tell of a time that is long enough to hold a turn of others and too short for each to be
 * looked at: of others' turns so many are met as they are long, of our own launches none. */
static void weigh(struct doubt *doubt, int64_t beyond_ns, int64_t away_ns)
{
    doubt->beyond_ns += beyond_ns;
    doubt->away_ns += away_ns;
    if (doubt->beyond_ns > 2 * EVIDENCE_NS)
        doubt->beyond_ns /= 2, doubt->away_ns /= 2;
}

/* Whether others may have had a turn meanwhile that was not seen, being shorter than a millisecond. Asked of
 * kinds that are known well: a longer launch of another is as likely its own length. That befalls one launch
 * in as many as fit into our own turn; a kind that is long more often than that is long by itself. So few of
 * the shortest are interrupted that this does not tell those that are now and then long: of these it is known
 * by what looks have told, for which they are measured often for a while. Where every launch is measured,
 * what is in doubt is charged all the same, and only says nothing of how the kind varies. */
static bool doubtful(struct measured_lane *lane, const struct trace *trace, struct estimate *estimate,
                     int64_t own, int64_t now_ns)
{
    struct doubt *doubt = trace_doubt(lane, trace->key);
    int64_t expected_ns = loose_load(&estimate->ns), most_ns = unseen_most_ns(lane);
    bool by_looks = expected_ns < RARELY_NS && !gpu_time_several_streams(&lane->lane, (uint64_t)now_ns)
        && !gpu_time_several_contexts(&lane->lane);
    if (++doubt->samples > DOUBT_SAMPLES)
        doubt->samples /= 2, doubt->long_ones /= 2;
    if (!share_contended(lane->lane.share, (uint64_t)(now_ns - STOPPED_NS)))
        return false;
    if (by_looks && trace->part_ns >= expected_ns + SWITCH_NS && trace->part_ns <= most_ns)
        weigh(
            doubt, trace->part_ns - expected_ns,
            gpu_probe_away_ns(trace_probe(lane, trace), trace->running_since_ns, trace->ran_until_ns, true));
    if (own < expected_ns + SWITCH_NS || own > most_ns)
        return false;
    int64_t most = (doubt->samples + DOUBT_FIRST) * expected_ns / OWN_TURN_NS;
    bool few = ++doubt->long_ones <= most, known = doubt->beyond_ns >= EVIDENCE_NS;
    if (!by_looks)
        return few;
    if (!known || doubt->long_ones > most + LONG_BY_CHANCE)
        estimate_watch(&gpu_time_predictor, estimate);
    return known ? 2 * doubt->away_ns >= doubt->beyond_ns : few;
}

/* Whether others were there when nobody of ours was let run, and it ended then. What others had of it is not
 * told by anything, and may be most. */
static bool is_unseen(struct measured_lane *lane, const struct trace *trace, int64_t now_ns)
{
    return share_contended(lane->lane.share, (uint64_t)trace->launched_ns)
        && residency_unseen(&trace_probe(lane, trace)->residency, trace->launched_ns, trace->running_since_ns,
                            trace->ran_until_ns, now_ns);
}

/* What an ended launch cost, or that it cannot be told. */
void gpu_cost_judge(struct measured_lane *lane, struct trace *trace, struct sweep *sweep, int64_t now_ns)
{
    struct estimate *estimate = estimate_find(&gpu_time_predictor, trace->key);
    int64_t expected_ns = estimate && loose_load(&estimate->samples) ? loose_load(&estimate->ns) : 0;
    bool averaged = trace->sweep && !trace->always, seen = averaged || gpu_sweep_saw(sweep, trace);
    if (expected_ns && expected_ns < SHORT_NS)
        leave_out_wait(lane, trace);
    int64_t own = gpu_cost_own_ns(lane, trace, trace->ran_until_ns, seen);
    bool is_short = expected_ns && expected_ns < SHORT_NS && (averaged || !estimate_measures_all(estimate));
    if (is_short && !trace->edge)
        own = short_ns(lane, trace, own);
    bool is_known =
        expected_ns && expected_ns < SHORT_NS && loose_load(&estimate->samples) >= ESTIMATE_SAMPLES;
    bool waited = is_short && is_known && unsharp(lane, trace, seen);
    bool in_doubt = is_known && !waited && doubtful(lane, trace, estimate, own, now_ns);
    trace->told = !trace->edge
        && !(is_short && own < -SWITCH_NS) /* a turn of others was taken for one in it */
        && !(is_short && in_doubt) && !waited && !(expected_ns && is_unseen(lane, trace, now_ns));
    bool blurred = own <= unseen_most_ns(lane)
        && ((is_known && !trace->whole) || (expected_ns && !seen && may_have_waited(lane, trace)));
    trace->own_ns = own;
    trace->single_ns = in_doubt || blurred ? expected_ns : own; /* that turns come is no variation of ours */
    if (expected_ns && seen)
        trace->single_ns = gpu_sweep_single_ns(sweep, trace, trace->single_ns, expected_ns);
    else if (expected_ns && expected_ns < ESTIMATE_SWEPT_NS && is_beside_unmeasured(lane, trace))
        trace->single_ns = single_ns(lane, trace, expected_ns);
    if (averaged)
        gpu_sweep_judge(lane, sweep, trace);
    else if (trace->others_ns == OTHERS_MEASURED && trace->whole && lane->in_turn) {
        int64_t part_ns = of_own(lane, trace, trace->part_ns);
        trace->own_ns += past_had_ns(&lane->past, trace->run, 0, INT64_MAX, part_ns) - part_ns;
    }
}
