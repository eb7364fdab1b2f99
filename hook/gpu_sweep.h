/* Launches on several streams run beside each other, so what each cost is only known while all of them are
 * measured: for a while now and then, a sweep. What ran beside the first and the last of a sweep is not, so
 * only launches are judged that began while every stream was being measured, early enough to have ended then,
 * mostly. They are taken as they began, as many short ones would else be in it and few long ones.
 *
 * A stream counts from its first one on, also if it was idle when that was launched: its thread may have
 * waited until then for what it had launched before, unmeasured. Launches of kinds that are always measured
 * are in a sweep as well. Each is charged what it had itself, not the mean of its kind, and may lie before
 * that.
 *
 * A program may also use its streams one by one, as one that waits for each request: then nothing is beside,
 * and launches are measured out of sweeps as those of one stream are.
 *
 * Where there is no such time, as streams with long queues drift apart, it is not known whether what was
 * queued on a stream before ran, or waited for something. A launch cost no less than if it ran, and no more
 * than if only the measured ones did: what was expected stands as long as it is between the two. That is told
 * by the launches that began before a stream was measured no more. Where these are few, by all, each stream
 * having gone on as long as it may.
 */
#ifndef VGPU_GPU_SWEEP_H
#define VGPU_GPU_SWEEP_H

#include "gpu_traces.h"

enum { SWEEP_STREAMS = 64 }; /* that are told apart */

struct sweep {
    bool over; /* nothing of it is left to come: its launches can be settled */
    bool together; /* every stream was being measured for long enough to judge by: */
    int64_t from_ns, last_ns, until_ns; /* when; and what began by then is judged */
    int64_t queued_until_ns; /* what had been queued on its streams before it ran until then */
    double had_ns, told_ns; /* what its launches had in that time, and would have by what each is told */
    bool contended;
    int64_t went_on_ns; /* when anything else was launched after it, or INT64_MAX */
    int others; /* streams used lately that have no launch in it */
    int streams;
    struct swept {
        uint64_t stream, bit;
        int launches;
        bool queued; /* launches that are not measured were before the first */
        int64_t launched_ns, from_ns, until_ns; /* the first was launched, and began; the last one ended */
    } of[SWEEP_STREAMS];
};

/* The one that is under way on the lane, as far as its launches have ended. */
void gpu_sweep_see(struct measured_lane *lane, struct sweep *sweep, int64_t now_ns);

/* A launch of the sweep seems to have cost `own_ns`, if that is told: what it says of its kind. */
void gpu_sweep_judge(struct measured_lane *lane, struct sweep *sweep, struct trace *trace);

/* What it says of how its kind varies, that had `own` of the time: that it was far longer only if it was so
 * whatever the streams did that are not known to have been measured then. */
int64_t gpu_sweep_single_ns(const struct sweep *sweep, const struct trace *trace, int64_t own,
                            int64_t expected_ns);

/* Whether all that ran beside it was measured. */
bool gpu_sweep_saw(const struct sweep *sweep, const struct trace *trace);

/* All have been judged: learn what launches of each kind cost, which is what each of them is charged. */
void gpu_sweep_learn(struct measured_lane *lane, struct sweep *sweep);

#endif
