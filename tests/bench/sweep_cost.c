/* What the hook's own thread works for a sweep: 220 launches on 32 streams, which is as many as there are,
 * run beside each other and are read every millisecond until they are settled. The driver's functions do next
 * to nothing. Prints the processor time of one such sweep, in us, the median of many; and what a launch, of 2
 * to 20 us, is expected to cost after them, in ns.
 *
 *     sweep_cost [together|apart|turns|late [EXPECTED_NS]]
 *
 * apart: each stream has a queue that ends later than others'; turns: one runs after the other; late:
 * together, but one more launch of each sweep is only seen when that is over and others run that are not
 * measured.
 */
#include "beside.c"
#include "credit.c"
#include "event_cost.c"
#include "gpu_probe.c"
#undef PATIENCE_NS
#undef PUT_ASIDE_NS
#include "gpu_cost.c"
#include "counters.c"
#include "gpu_lane.c"
#include "gpu_read.c"
#include "gpu_sweep.c"
#include "past.c"
#include "residency.c"
#include "throttle.c"
#include "worked.c"

#include <stdio.h>
#include <stdlib.h>

enum { SWEEPS = 301, STREAMS = 32, LAUNCHES = 220 };

struct CUevent_st {
    int64_t done_ns;
};

struct predictor gpu_time_predictor;
static _Alignas(64) unsigned char region_file[TAIL_OFFSET + TAIL_BYTES];
_Atomic(struct region *) region_known;
static struct measured_lane lane;
static struct share share;
static const struct settings setting;
_Atomic(const struct settings *) settings_known = &setting;
static struct CUevent_st begins[LAUNCHES], ends[LAUNCHES], anchor = {1};
static int64_t clock_ns = 1000 * MS_NS;

static CUresult query(CUevent event)
{
    return event->done_ns <= clock_ns ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

static CUresult elapsed_ms(float *ms, CUevent from, CUevent until)
{
    *ms = (float)((double)(until->done_ns - from->done_ns) / 1e6);
    return CUDA_SUCCESS;
}

static struct real_cuda driver = {.cuEventQuery = query, .cuEventElapsedTime = elapsed_ms};
_Atomic(const void *) real_known[DRIVERS] = {&driver, &driver};

const void *real_search(enum driver which, bool load)
{
    (void)which, (void)load;
    return &driver;
}

const struct settings *settings_gather(void)
{
    return &setting;
}

/* Launches of 2 to 20 us, as long as they take beside 31 others, or alone. */
static void launch_all(char way)
{
    static uint64_t random = 1;
    int64_t free_ns[STREAMS], beside = way == 'u' ? 1 : STREAMS;
    for (int i = 0; i < STREAMS; i++)
        free_ns[i] = clock_ns + (way == 'a' ? 3 * MS_NS * i : way == 'u' ? MS_NS * i : 0);
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
        atomic_store(&trace->state, TRACE_OUT);
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
    atomic_store(&trace->state, TRACE_OUT);
}

static void settle_all(void)
{
    for (int look = 0; atomic_load(&lane.lane.sweep_out) > 0; look++) {
        if (look > 400)
            exit(1);
        clock_ns += MS_NS;
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
    region_known = (struct region *)(void *)region_file;
    lane.lane.share = &share;
    lane.probes[0].context = (CUcontext)(void *)&driver;
    lane.probes[0].anchor = &anchor;
    lane.probes[0].anchor_at_ns = 1;
    estimate_claim(&gpu_time_predictor, 1);
    for (int i = 0; i < ESTIMATE_SAMPLES; i++)
        estimate_learn(&gpu_time_predictor, estimate_find(&gpu_time_predictor, 1), 1, expected_ns, expected_ns);
    for (int sweep = 0; sweep < SWEEPS; sweep++) {
        launch_all(way);
        int64_t began_ns = worked_ns();
        settle_all();
        took_ns[sweep] = worked_ns() - began_ns;
        if (way == 'l') {
            launch_late();
            settle_all();
        }
        clock_ns += 20 * MS_NS;
    }
    qsort(took_ns, SWEEPS, sizeof *took_ns, compare);
    printf("%.1f %u\n", (double)took_ns[SWEEPS / 2] / 1e3,
           (unsigned)atomic_load(&estimate_find(&gpu_time_predictor, 1)->ns));
    return 0;
}
