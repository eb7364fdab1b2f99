/* What the hook's own thread works for a sweep: 360 launches on 32 streams, which is as many as there are,
 * run beside each other and are read every millisecond until they are settled. The driver's functions do next
 * to nothing. Prints the processor time of one such sweep, in us, the median of many; and what a launch, of 2
 * to 20 us, is expected to cost after them, in ns.
 *
 *     sweep_cost [together|beside|apart|turns|late [EXPECTED_NS]]
 *
 * beside: together, beside another container, where they are read four times as often;
 * apart: each stream has a queue that ends later than others'; turns: one runs after the other; late:
 * together, but one more launch of each sweep is only seen when that is over and others run that are not
 * measured.
 */
#include "read_lane.h"

#include <stdio.h>
#include <stdlib.h>

enum { SWEEPS = 301, STREAMS = 32, LAUNCHES = SWEEP_MOST };

static struct CUevent_st begins[LAUNCHES], ends[LAUNCHES];

/* Launches of 2 to 20 us, as long as they take beside 31 others, or alone. */
static void launch_all(char way)
{
    static uint64_t random = 1;
    int64_t free_ns[STREAMS], beside = way == 'u' ? 1 : STREAMS;
    for (int i = 0; i < STREAMS; i++)
        free_ns[i] = clock_ns + (way == 'a' ? 5 * MS_NS * i : way == 'u' ? MS_NS * i : 0);
    for (int i = 0; i < LAUNCHES; i++) {
        struct trace *trace = &lane.traces[i];
        int64_t *from_ns = &free_ns[i % STREAMS];
        random = random * UINT64_C(6364136223846793005) + 1442695040888963407;
        begins[i].done_ns = *from_ns;
        *from_ns += (int64_t)(2000 + (random >> 33) % 18000) * beside;
        ends[i].done_ns = *from_ns;
        trace->begin = &begins[i];
        trace->end = &ends[i];
        trace->stream = (uint64_t)(i % STREAMS) + 1;
        trace->turn = lane.lane.threads.of;
        trace->key = 1;
        trace->expected_ns = trace->charged_ns = 11000;
        trace->began_ns = trace->launched_ns = trace->recorded_ns =
            way == 'u' ? begins[i].done_ns : clock_ns + i;
        trace->running_since_ns = 0;
        trace->ended = trace->edge = false;
        trace->sweep = (uint64_t)clock_ns;
        trace_goes_out(&lane, trace);
    }
    atomic_store(&lane.lane.swept_at_ns, (uint64_t)clock_ns);
    atomic_store(&lane.lane.sweep_out, LAUNCHES);
    atomic_store(&lane.lane.went_on_at_ns, way == 'u' ? 0 : (uint64_t)clock_ns + 1000);
}

static void launch_late(void)
{
    struct trace *trace = &lane.traces[0];
    begins[0].done_ns = trace->began_ns = trace->launched_ns = trace->recorded_ns = clock_ns;
    ends[0].done_ns = clock_ns + INT64_C(11000) * STREAMS;
    trace->running_since_ns = 0;
    trace->ended = trace->edge = false;
    trace->sweep = atomic_load(&lane.lane.swept_at_ns);
    atomic_store(&lane.lane.sweep_out, 1);
    trace_goes_out(&lane, trace);
}

static void settle_all(bool contended)
{
    for (int look = 0; atomic_load(&lane.lane.sweep_out) > 0; look++) {
        if (look > 400)
            exit(1);
        clock_ns += contended ? MS_NS / 4 : MS_NS;
        share.contended_at_ns = contended ? (uint64_t)clock_ns : 0;
        lane.probes[0].anchor_at_ns = anchor.done_ns = clock_ns; /* as if it were moved in time */
        gpu_read_traces(&lane, clock_ns, true);
    }
}

static int64_t worked_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static int compare(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

int main(int count, char **words)
{
    static int64_t took_ns[SWEEPS];
    int64_t expected_ns = count > 2 ? atol(words[2]) : 11000;
    char way = count < 2 ? 't' : words[1][1] == 'u' ? 'u' : words[1][0]; /* the first letter, or of turns the second */
    open_lane();
    estimate_claim(&gpu_time_predictor, 1);
    for (int i = 0; i < ESTIMATE_SAMPLES; i++)
        estimate_learn(&gpu_time_predictor, estimate_find(&gpu_time_predictor, 1), 1, expected_ns, expected_ns);
    for (int sweep = 0; sweep < SWEEPS; sweep++) {
        launch_all(way);
        int64_t began_ns = worked_ns();
        settle_all(way == 'b');
        took_ns[sweep] = worked_ns() - began_ns;
        if (way == 'l') {
            launch_late();
            settle_all(false);
        }
        clock_ns += 20 * MS_NS;
    }
    qsort(took_ns, SWEEPS, sizeof *took_ns, compare);
    printf("%.1f %u\n", (double)took_ns[SWEEPS / 2] / 1e3,
           (unsigned)atomic_load(&estimate_find(&gpu_time_predictor, 1)->ns));
    return 0;
}
