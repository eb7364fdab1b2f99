/* A sweep in which a kind of launch is seen to be far longer now and then, so that it is always measured from
 * then on. Words: what the kind is expected to cost, and how long one of its launches takes, in us; and maybe
 *
 *     always      it was measured always before
 *     again       the same once more, as if the kind had been forgotten to be so meanwhile
 *
 * Prints whether all of the kind are measured now, and what part of its time a stream is said to have had in
 * sweeps alone and beside others: a quarter before this one.
 */
#include "read_lane.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STREAMS = 2, EACH = 30, LAUNCHES = STREAMS * EACH, LONG_ONE = 10, KIND = 1 };

static struct CUevent_st begins[LAUNCHES], ends[LAUNCHES];

static void launch(int number, uint64_t stream, int64_t from_ns, int64_t until_ns, int64_t sweep_ns,
                   bool always)
{
    struct trace *trace = &lane.traces[number];
    begins[number].done_ns = from_ns;
    ends[number].done_ns = until_ns;
    trace->taken = true;
    trace->begin = &begins[number];
    trace->end = &ends[number];
    trace->context = lane.probes[0].context;
    trace->stream = stream;
    trace->turn = lane.lane.threads.of;
    trace->key = KIND;
    trace->expected_ns = trace->charged_ns = loose_load(&estimate_find(&gpu_time_predictor, KIND)->ns);
    trace->began_ns = trace->launched_ns = trace->recorded_ns = sweep_ns + 1;
    trace->others_ns = OTHERS_MEASURED;
    trace->begin_call = 3 * number;
    trace->launch_call = 3 * number + 1;
    trace->end_call = 3 * number + 2;
    trace->sweep = (uint64_t)sweep_ns;
    trace->always = always;
    trace->running_since_ns = 0;
    trace->ended = trace->edge = false;
    atomic_fetch_add(&lane.lane.sweep_out, 1);
    trace_goes_out(&lane, trace);
}

static void sweep(int64_t expected_ns, int64_t longest_ns, bool always)
{
    int64_t sweep_ns = clock_ns;
    anchor.done_ns = lane.probes[0].anchor_at_ns = sweep_ns;
    struct estimate *estimate = estimate_claim(&gpu_time_predictor, KIND);
    estimate_set(estimate, expected_ns);
    loose_store(&estimate->samples, ESTIMATE_SAMPLES);
    loose_store(&estimate->deviation, always ? ESTIMATE_ALWAYS | ESTIMATE_HELD : 0);
    for (int i = 0; i < 2; i++)
        lane.beside[i].of[0] = (struct beside_stream){.stream = 3, .part_ns = 1000, .most_ns = 4000};
    for (int stream = 0; stream < STREAMS; stream++) {
        int64_t at_ns = sweep_ns + 10;
        for (int i = 0; i < EACH; i++) {
            int64_t took_ns = stream == 0 && i == LONG_ONE ? longest_ns : STREAMS * expected_ns;
            launch(stream * EACH + i, (uint64_t)stream + 1, at_ns, at_ns + took_ns, sweep_ns, always);
            at_ns += took_ns;
        }
    }
    loose_store(&lane.lane.swept_at_ns, (uint64_t)sweep_ns);
    loose_store(&lane.lane.went_on_at_ns, (uint64_t)sweep_ns + 2);
    clock_ns += 20 * MS_NS;
    gpu_read_traces(&lane, clock_ns, true);
    printf("%d %.2f %.2f\n", estimate_measures_all_alone(estimate), beside_part(&lane.beside[0], 3),
           beside_part(&lane.beside[1], 3));
}

int main(int count, char **words)
{
    if (count < 3)
        return 2;
    bool always = count > 3 && !strcmp(words[3], "always"), again = count > 3 && !strcmp(words[3], "again");
    open_lane();
    for (int i = 0; i <= again; i++)
        sweep((int64_t)(atof(words[1]) * 1000), (int64_t)(atof(words[2]) * 1000), always);
    return 0;
}
