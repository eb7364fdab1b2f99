#include "gpu_time.h"
#include "counters.h"
#include "depth.h"
#include "devices.h"
#include "gpu_clock.h"
#include "gpu_traces.h"
#include "launch_count.h"
#include "monotonic.h"
#include "real.h"
#include "reclaim.h"
#include "region.h"
#include "streams.h"

#include <pthread.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>

#define TRY_AGAIN_NS (1000 * MS_NS) /* to measure by events, once they could not be read */

struct predictor gpu_time_predictor;

_Atomic(struct lane *) gpu_lanes[MAX_DEVICES];

static _Atomic(struct measured_lane *) measured; /* by place */
static pthread_once_t fork_once = PTHREAD_ONCE_INIT;

static size_t used_of(const struct measured_lane *lane)
{
    return offsetof(struct measured_lane, traces) + lane->opened * sizeof *lane->traces;
}

/* The parent's contexts, streams and events do not exist in the child. */
static void forget_after_fork(void)
{
    for (int place = 0; place < MAX_DEVICES; place++) {
        struct measured_lane *lane = traces_of(atomic_exchange(&gpu_lanes[place], NULL));
        if (lane) /* pages that were never touched stay so */
            memset(lane, 0, used_of(lane));
    }
    launch_count_forget();
}

static void watch_forks(void)
{
    launch_count_begin();
    pthread_atfork(NULL, NULL, forget_after_fork);
}

#define SAME(field)                                                                                          \
    _Static_assert(offsetof(struct share, field)                                                             \
                       == offsetof(struct region_device, field) - offsetof(struct region_device, budget_ns), \
                   #field)
SAME(refilled_at_ns);
SAME(charged_ns);
SAME(throttled_ns);
SAME(launches);
SAME(waits);
SAME(contended_at_ns);
SAME(overlong_at_ns);
SAME(least_had);
SAME(caught_up_at_ns);
SAME(waits_at_ns);
SAME(let_out_at_ns);
SAME(waited_until_ns);
SAME(ended_at_ns);
SAME(met);
SAME(waited_since_ns);
#undef SAME

bool gpu_time_prepare(void)
{
    const size_t bytes = MAX_DEVICES * sizeof *measured;
    struct measured_lane *none = NULL;
    if (loose_load(&measured))
        return true;
    void *made =
        mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (made == MAP_FAILED)
        return false;
    if (!atomic_compare_exchange_strong(&measured, &none, made))
        munmap(made, bytes);
    return true;
}

struct lane *gpu_lane_open(int place)
{
    struct region_device *device = region_open() && gpu_time_prepare() ? region_device_at(place) : NULL;
    if (!device)
        return NULL;
    pthread_once(&fork_once, watch_forks);
    struct measured_lane *of = atomic_load(&measured) + place;
    loose_store(&of->place, place);
    struct lane *lane = &of->lane;
    lane->share = (struct share *)(void *)&device->budget_ns;
    atomic_store_explicit(&gpu_lanes[place], lane, memory_order_release);
    return lane;
}

/* --- around a launch ------------------------------------------------------------------------------------ */

static void drop_events(struct trace *trace)
{
    if (trace->context) {
        real_cuda()->cuEventDestroy_v2(trace->begin);
        real_cuda()->cuEventDestroy_v2(trace->end);
    }
    trace->context = NULL;
}

/* `busy`: not while somebody reads, as just now. */
static bool make_events(struct measured_lane *lane, struct trace *trace, CUcontext context, bool *busy)
{
    const struct real_cuda *real = real_cuda();
    if (trace->context == context)
        return true;
    if (trace->context) {
        if ((*busy = atomic_exchange(&lane->polling, true)))
            return false; /* that other context may be about to end, and its events with it */
        drop_events(trace);
        atomic_store(&lane->polling, false);
    }
    if (real->cuEventCreate(&trace->begin, 0) != CUDA_SUCCESS)
        return false;
    if (real->cuEventCreate(&trace->end, 0) != CUDA_SUCCESS) {
        real->cuEventDestroy_v2(trace->begin);
        return false;
    }
    trace->context = context;
    return true;
}

static CUresult record(CUevent event, CUstream stream, bool per_thread)
{
    const struct real_cuda *real = real_cuda();
    if (per_thread && real->cuEventRecord_ptsz)
        return real->cuEventRecord_ptsz(event, stream);
    return real->cuEventRecord(event, stream);
}

/* A free place, if possible one with events of this context. */
static struct trace *take_place(struct measured_lane *lane, CUcontext context, bool guess, bool always)
{
    size_t places = guess ? TRACES : always ? TRACES - GUESSES : TRACES_MOSTLY;
    for (int again = 0; again < 3; again++) { /* then one without events, then one with those of another */
        for (size_t i = 0; i < places && (again || i < atomic_load(&lane->opened)); i++) {
            struct trace *trace = &lane->traces[i];
            if ((again < 2 && trace->context != (again ? NULL : context)) || loose_load(&trace->taken))
                continue;
            size_t opened = i; /* first: a child of fork forgets what is opened */
            while (!atomic_compare_exchange_strong(&lane->opened, &opened, opened > i ? opened : i + 1)) { }
            if (atomic_exchange(&trace->taken, true))
                continue;
            trace->turn = gpu_time_own_turn(&lane->lane, 0);
            return trace;
        }
    }
    return NULL;
}

/* The number of the context's probe, that is opened unless there is one. Where there are too many contexts,
 * or somebody reads just now (`busy`), there is none. */
static size_t probe_in(struct measured_lane *lane, CUcontext context, bool *busy)
{
    size_t number = trace_find_probe(lane, context);
    if (number < PROBES || trace_find_probe(lane, NULL) == PROBES
        || (*busy = atomic_exchange(&lane->polling, true)))
        return number;
    number = trace_find_probe(lane, context); /* another thread may have been faster */
    if (number == PROBES && (number = trace_find_probe(lane, NULL)) < PROBES) {
        if (gpu_probe_open(&lane->probes[number], context))
            atomic_fetch_add(&lane->lane.contexts, 1);
        else
            number = PROBES;
    }
    atomic_store(&lane->polling, false);
    return number;
}

/* Whose context it is tells whether streams run beside each other. Several threads in one stream are told
 * apart by what tells several streams. */
static void note_context(struct measured_lane *lane, const struct trace *trace)
{
    struct probe *probe = trace_probe(lane, trace);
    uint64_t user = trace->stream ^ (uint64_t)pthread_self();
    probe->measured_ns = trace->began_ns;
    if (atomic_exchange(&probe->user, user) != user && gpu_time_several_contexts(&lane->lane))
        loose_store(&lane->lane.several_streams_at_ns, (uint64_t)trace->began_ns);
}

static struct trace *start_trace(struct measured_lane *lane, CUcontext context, size_t probe, CUstream stream,
                                 bool per_thread, bool guess, bool always, bool *busy)
{
    struct trace *trace = take_place(lane, context, guess, always);
    *busy = !trace;
    if (!trace)
        return NULL;
    trace->by_clock = false;
    trace->guess = guess;
    trace->stream =
        past_stream_only(gpu_time_stream(stream, per_thread)) | (uint64_t)probe << PAST_CONTEXT_AT;
    if (make_events(lane, trace, context, busy))
        return trace;
    trace_leave(lane, trace);
    return NULL;
}

static void begin_now(struct lane *lane, struct trace *trace)
{
    trace->began_ns = (int64_t)monotonic_ns();
    trace->others_ns = -gpu_time_spent_ns(lane);
    trace->begin_call = atomic_fetch_add(&lane->calls, 1);
}

/* What is ours lies in the whole context, which other threads may have current. The NULL stream is that of
 * the program's own. */
static struct trace *begin_by_events(struct measured_lane *lane, CUstream stream, bool per_thread, bool guess,
                                     bool always, bool *busy)
{
    uint64_t unreadable_ns = loose_load(&lane->unreadable_at_ns);
    if (!gpu_probe_possible() || (unreadable_ns && elapsed_ns(unreadable_ns, monotonic_ns()) < TRY_AGAIN_NS))
        return NULL;
    CUcontext context = stream_enter(stream);
    size_t probe = context ? probe_in(lane, context, busy) : PROBES;
    struct trace *trace = NULL;
    if (probe < PROBES && context != atomic_load(&lane->ending))
        trace = start_trace(lane, context, probe, stream, per_thread, guess, always, busy);
    stream_leave(context);
    if (trace && record(trace->begin, stream, per_thread) != CUDA_SUCCESS) {
        trace_leave(lane, trace);
        return NULL;
    }
    if (trace) {
        begin_now(&lane->lane, trace);
        note_context(lane, trace);
    }
    return trace;
}

struct trace *gpu_time_begin(struct lane *of, CUstream stream, bool per_thread, bool guess, bool always,
                             bool edge)
{
    struct measured_lane *lane = traces_of(of);
    struct quiet quiet = quiet_begin();
    /* Nobody waits for a launch because it is not to be measured just now; but of what is known nothing of,
     * no more goes out than may at a time. */
    bool busy = false;
    struct trace *trace = begin_by_events(lane, stream, per_thread, guess, always, &busy);
    if (!trace && (!busy || guess) && (trace = take_place(lane, NULL, guess, always))) {
        trace->by_clock = true;
        trace->began_ns = gpu_clock_wait(stream, per_thread); /* what it is to do yet was charged already */
    }
    if (trace) {
        trace->always = always;
        trace->edge = edge;
    }
    quiet_end(quiet);
    return trace;
}

void gpu_time_begin_again(struct lane *lane, struct trace *trace, CUstream stream, bool per_thread)
{
    if (!trace->by_clock) {
        depth_enter();
        record(trace->begin, stream, per_thread);
        depth_leave();
    }
    begin_now(lane, trace);
}

bool gpu_time_end(struct lane *lane, struct trace *trace, CUstream stream, bool per_thread, uint64_t key,
                  int64_t charged_ns, uint64_t sweep, bool on_credit, bool launched)
{
    if (trace->by_clock) {
        if (launched)
            gpu_clock_end(traces_of(lane), trace, stream, per_thread, key, charged_ns);
        trace_leave(traces_of(lane), trace);
        return false;
    }
    trace->sweep = sweep;
    trace->on_credit = on_credit;
    trace->launched_ns = (int64_t)monotonic_ns();
    trace->launch_call = atomic_fetch_add(&lane->calls, 1);
    trace->key = key;
    trace->expected_ns = trace->charged_ns = charged_ns;
    trace->running_since_ns = 0;
    trace->own_before_ns = -1;
    trace->ended = trace->told = trace->waits = false;
    depth_enter();
    bool recorded = launched && record(trace->end, stream, per_thread) == CUDA_SUCCESS;
    depth_leave();
    trace->recorded_ns = (int64_t)monotonic_ns();
    if (launched && !recorded)
        loose_store(&traces_of(lane)->unreadable_at_ns, (uint64_t)trace->recorded_ns);
    trace->end_call = atomic_fetch_add(&lane->calls, 1);
    trace->others_ns += gpu_time_spent_ns(lane);
    if (gpu_time_several_streams(lane, (uint64_t)trace->recorded_ns) || gpu_time_several_contexts(lane))
        trace->others_ns = OTHERS_MEASURED;
    else if (trace->others_ns < 0)
        trace->others_ns = 0;
    if (recorded)
        estimate_claim(&gpu_time_predictor, key);
    if (recorded)
        count_more_ns(&lane->uncertain_ns, charged_ns);
    if (recorded && sweep)
        atomic_fetch_add(&lane->sweep_out, 1);
    if (recorded && trace->guess)
        loose_store(&trace->guessed_key, key);
    if (recorded)
        trace_goes_out(traces_of(lane), trace);
    else
        trace_leave(traces_of(lane), trace);
    return recorded;
}
