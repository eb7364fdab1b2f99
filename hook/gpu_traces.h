/* What the files of gpu_*.c share: the launches of this process that are being measured on one device. */
#ifndef VGPU_GPU_TRACES_H
#define VGPU_GPU_TRACES_H

#include "beside.h"
#include "busy.h"
#include "gpu_probe.h"
#include "gpu_time.h"
#include "past.h"
#include "worked.h"

enum {
    TRACES = 1024, /* as many as a queue of the driver's holds, */
    TRACES_MOSTLY = 380, /* of which what need not be measured may have the first so many */
    DOUBTS = 256,
    DOUBT_WAYS = 8,
    SWEPT_LEAST = 2,
    SWEPT_MOST = 128,
    OTHERS_MEASURED = -1,
    PROBES = 4,
    NOTED = 64, /* looks at the budget that are kept until the next poll */
};

struct trace {
    _Alignas(256) _Atomic bool taken; /* so that its place among them is told by a shift */
    bool ordered; /* it is in the lane's order: for who polls */
    _Atomic(CUcontext) context; /* that the events are of, NULL: none yet */
    CUevent begin, end;
    uint64_t stream; /* of past.h; its context is the number of a probe */
    uint64_t key;
    struct turn *turn; /* of the thread that launches it */
    int64_t expected_ns, charged_ns;
    /* What launches of other threads between its events were charged, in its stream; OTHERS_MEASURED: to be
     * asked of the past, as there are several streams. */
    int64_t others_ns;
    int64_t begin_call, launch_call, end_call; /* of the lane's */
    int64_t began_ns, launched_ns,
        recorded_ns; /* CPU time before the launch, after it, and after the end event */
    int64_t running_since_ns; /* 0: not seen running yet */
    int64_t ran_until_ns; /* of one that has ended */
    int64_t own_before_ns; /* of worked.h, as it began; less than 0: not known */
    uint64_t run; /* its number in the past */
    bool queued; /* something was before it on its stream as it was launched */
    _Atomic bool ended; /* these three are looked at by who waits to launch, too */
    bool whole; /* nobody else had a turn meanwhile */
    _Atomic bool on_credit; /* it is to be seen whether it was enough */
    _Atomic bool waits; /* it runs for so long that it may wait for another GPU */
    bool met; /* one on another GPU ended with it, so it did wait */
    bool told; /* what it cost: */
    int64_t single_ns, own_ns; /* by itself, and in the mean of its kind in the sweep */
    int64_t part_ns; /* of the time that its stream had between its events */
    double least_ns; /* that one of a sweep may have cost */
    bool guess; /* of what it costs: little is known of its kind, */
    _Atomic uint64_t guessed_key; /* which is told to other threads here; 0: no guess is out */
    uint64_t sweep; /* settled together with others: when theirs began; or 0 */
    bool always; /* its kind is measured always, in sweeps too */
    bool edge; /* it says what ran, not what it cost */
    bool by_clock; /* it is waited for, and has no events */
};

/* How many times of a short kind were long enough to hold a turn of others that was not seen; and began when
 * nothing was before it on its stream, so that it may have waited for another of our contexts. */
struct doubt {
    uint64_t key;
    int64_t samples, long_ones;
    int64_t beyond_ns,
        away_ns; /* what such had beyond what was expected, and what of it looks gave to others */
    int unsharp; /* in a row */
    bool longer; /* the last sweep said that it takes far longer, which the one before did not */
    bool always; /* it was measured always once, of those that sweeps had told of */
    int bounded; /* launches that sweeps have set bounds by, and these on average */
    double least_ns, most_ns;
    int swept; /* launches that sweeps have told of, from SWEPT_LEAST to SWEPT_MOST */
};

struct measured_lane {
    struct lane lane;
    _Atomic int place; /* of the device */
    _Atomic bool polling;
    _Atomic bool look_due; /* who looks waits for who is polling, */
    _Atomic int left_out; /* and has not for so many looks in a row */
    _Atomic(CUcontext) ending; /* nothing is measured in it */
    _Atomic uint64_t unreadable_at_ns; /* when the driver last refused to say what was measured; 0: never */
    _Atomic int64_t clocked_until_ns; /* the time up to then is charged to launches that were waited for */
    int in_turn; /* launches for which streams are taken to wait for the legacy one, and it for them */
    int unclear; /* launches measured last, of which the calls took too long to tell what they cost */
    uint64_t swept_ns; /* when the last sweep that is over began */
    unsigned noted_read;
    struct probe probes[PROBES]; /* of the contexts that launch: each has turns of its own */
    struct busy_shown shown; /* while `polling` */
    struct past past, most; /* what ran, and what may have run beside a sweep that is over */
    struct beside beside[2]; /* what sweeps tell of launches that are always measured; [1]: beside others */
    struct worked worked; /* of others, beside those */
    struct noted { /* what the others had been charged when launches were looked at, for who polls */
        _Atomic int64_t at_ns, spent_ns; /* 0: to be filled */
    } noted[NOTED];
    struct turns streams; /* until when each may run what was launched there and looked at, */
    _Atomic uint64_t
        in_series_until_ns[SHARE_TURNS]; /* and what comes there is with what is always measured */
    struct doubt doubts[DOUBTS];
    _Atomic uint64_t out[TRACES / 64]; /* a bit for each that is being measured, */
    uint16_t order[TRACES]; /* and their places, as their ends were recorded: for who polls */
    size_t orders;
    _Atomic size_t opened; /* the others were never taken */
    struct trace traces[TRACES];
};

static inline struct measured_lane *traces_of(struct lane *lane)
{
    return (struct measured_lane *)(void *)lane;
}

/* The number of the context's probe, or PROBES. */
size_t trace_find_probe(const struct measured_lane *lane, CUcontext context);

/* What is in doubt of a kind. */
struct doubt *trace_doubt(struct measured_lane *lane, uint64_t key);

static inline size_t trace_place(const struct measured_lane *lane, const struct trace *trace)
{
    return (size_t)(trace - lane->traces);
}

/* It is being measured from now on. */
void trace_goes_out(struct measured_lane *lane, const struct trace *trace);

/* It is not, and its place may be taken. */
void trace_leave(struct measured_lane *lane, struct trace *trace);

/* The next one that is out, after that one (NULL: the first). NULL: there is none. */
struct trace *trace_next(struct measured_lane *lane, const struct trace *after);

/* It is seen to run since then. */
void trace_runs(struct measured_lane *lane, struct trace *trace, int64_t from_ns);

/* It is charged so much by now, all in all. */
void trace_charge(struct measured_lane *lane, struct trace *trace, int64_t ns);

/* All is known of it that will be; its place is free. */
void trace_finish(struct measured_lane *lane, struct trace *trace);

/* Measure this one no more. */
void trace_drop(struct measured_lane *lane, struct trace *trace);

/* See what has ended and what runs, and charge it. Whether there is anything. The lane is being polled by the
 * caller alone, with a context current that has a probe. `look`: after that probes are sent. */
bool gpu_read_traces(struct measured_lane *lane, int64_t now_ns, bool look);

/* What tells others' turns from those of its context. */
static inline struct probe *trace_probe(struct measured_lane *lane, const struct trace *trace)
{
    return &lane->probes[past_context(trace->stream)];
}

#endif
