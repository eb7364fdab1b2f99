#include "gpu_time.h"
#include "depth.h"
#include "devices.h"
#include "gpu_probe.h"
#include "monotonic.h"
#include "past.h"
#include "real.h"
#include "region.h"

#include <pthread.h>
#include <stddef.h>
#include <string.h>

enum { TRACES = 48, CAPTURE_RELAXED = 2, DOUBTS = 64, DOUBTED = 8 };

#define SWITCH_NS INT64_C(50000) /* a measurement shorter than this does not hold another process's turn */
#define COARSE_NS INT64_C(8000000) /* one longer than this holds many looks at who has the GPU */
#define CONTENDED_NS (50 * MS_NS) /* others that had the GPU so lately are still there */
#define LATELY_NS (10 * MS_NS)
#define PUT_ASIDE_NS 100000 /* the launching thread did not run for a while, so its times say nothing */

enum trace_state { TRACE_FREE, TRACE_TAKEN, TRACE_OUT };

struct trace {
    _Atomic int state;
    _Atomic(CUcontext) context; /* that the events are of, NULL: none yet */
    CUevent begin, end;
    uint64_t stream;
    uint64_t key;
    int64_t expected_ns, charged_ns;
    int64_t began_ns, launched_ns; /* CPU time before and after the calls */
    int64_t running_since_ns; /* 0: not seen running yet */
    int64_t ran_until_ns; /* of one that has ended */
    uint64_t run; /* its number in the past */
    bool ended;
    bool edge; /* others that are not measured may run beside it: it says what ran, not what it cost */
};

/* How often in a row times of a kind were doubtful. */
struct doubt {
    uint64_t key;
    int64_t least_ns;
    int count;
};

struct measured_lane {
    struct lane lane;
    _Atomic bool known, polling;
    _Atomic bool unreadable; /* the driver refuses to: nothing is measured */
    struct probe probe;
    struct past past;
    struct trace traces[TRACES];
    struct doubt doubts[DOUBTS];
};

struct predictor gpu_time_predictor;

static struct measured_lane lanes[MAX_DEVICES];
static pthread_once_t fork_once = PTHREAD_ONCE_INIT;

/* The parent's contexts, streams and events do not exist in the child. */
static void forget_after_fork(void)
{
    for (int place = 0; place < MAX_DEVICES; place++)
        if (atomic_load(&lanes[place].known)) /* pages that were never touched stay so */
            memset(&lanes[place], 0, sizeof lanes[place]);
}

static void watch_forks(void)
{
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
#undef SAME

struct lane *gpu_lane(int place)
{
    if (place < 0 || place >= MAX_DEVICES)
        return NULL;
    struct measured_lane *lane = &lanes[place];
    if (atomic_load_explicit(&lane->known, memory_order_acquire))
        return &lane->lane;
    struct region_device *device = region_open() ? region_device_at(place) : NULL;
    if (!device)
        return NULL;
    pthread_once(&fork_once, watch_forks);
    lane->lane.share = (struct share *)(void *)&device->budget_ns;
    atomic_store_explicit(&lane->known, true, memory_order_release);
    return &lane->lane;
}

static struct measured_lane *measured(struct lane *lane)
{
    return (struct measured_lane *)(void *)lane;
}

/* Our calls must not end a capture of this program that forbids them to all threads. */
static int relax_capture(void)
{
    const struct real_cuda *real = real_cuda();
    int mode = CAPTURE_RELAXED;
    if (!real->cuThreadExchangeStreamCaptureMode
        || real->cuThreadExchangeStreamCaptureMode(&mode) != CUDA_SUCCESS)
        return -1;
    return mode;
}

static void restore_capture(int mode)
{
    if (mode >= 0)
        real_cuda()->cuThreadExchangeStreamCaptureMode(&mode);
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

static bool make_events(struct trace *trace, CUcontext context)
{
    const struct real_cuda *real = real_cuda();
    if (trace->context == context)
        return true;
    drop_events(trace);
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
static struct trace *take_place(struct measured_lane *lane, CUcontext context)
{
    for (int again = 0; again < 2; again++) {
        for (size_t i = 0; i < TRACES; i++) {
            struct trace *trace = &lane->traces[i];
            int is_free = TRACE_FREE;
            if ((again || trace->context == context)
                && atomic_compare_exchange_strong(&trace->state, &is_free, TRACE_TAKEN))
                return trace;
        }
    }
    return NULL;
}

uint64_t gpu_time_stream(CUstream stream, bool per_thread)
{
    return per_thread && (uintptr_t)stream <= 2 ? (uint64_t)pthread_self() | 1 : (uintptr_t)stream;
}

static struct trace *start_trace(struct measured_lane *lane, CUcontext context, CUstream stream,
                                 bool per_thread)
{
    struct trace *trace = take_place(lane, context);
    if (!trace)
        return NULL;
    trace->began_ns = (int64_t)monotonic_ns();
    trace->stream = gpu_time_stream(stream, per_thread);
    if (make_events(trace, context) && record(trace->begin, stream, per_thread) == CUDA_SUCCESS)
        return trace;
    atomic_store(&trace->state, TRACE_FREE);
    return NULL;
}

struct trace *gpu_time_begin(struct lane *of, CUstream stream, bool per_thread)
{
    struct measured_lane *lane = measured(of);
    CUcontext context = NULL;
    if (!gpu_probe_possible() || atomic_load(&lane->unreadable)
        || real_cuda()->cuCtxGetCurrent(&context) != CUDA_SUCCESS || !context)
        return NULL;
    depth_enter();
    int mode = relax_capture();
    if (!lane->probe.context && !atomic_exchange(&lane->polling, true)) {
        if (!lane->probe.context && !gpu_probe_open(&lane->probe, context))
            atomic_store(&lane->unreadable, true);
        atomic_store(&lane->polling, false);
    }
    struct trace *trace = lane->probe.context ? start_trace(lane, context, stream, per_thread) : NULL;
    restore_capture(mode);
    depth_leave();
    return trace;
}

void gpu_time_end(struct trace *trace, CUstream stream, bool per_thread, uint64_t key, int64_t charged_ns,
                  bool edge, bool launched)
{
    trace->edge = edge;
    trace->launched_ns = (int64_t)monotonic_ns();
    trace->key = key;
    trace->expected_ns = trace->charged_ns = charged_ns;
    trace->running_since_ns = 0;
    trace->ended = false;
    depth_enter();
    bool recorded = launched && record(trace->end, stream, per_thread) == CUDA_SUCCESS;
    depth_leave();
    struct estimate *estimate = recorded ? estimate_claim(&gpu_time_predictor, key) : NULL;
    if (estimate)
        atomic_fetch_add(&estimate->open, 1);
    atomic_store(&trace->state, recorded ? TRACE_OUT : TRACE_FREE);
}

/* --- reading -------------------------------------------------------------------------------------------- */

static void finish(struct trace *trace)
{
    struct estimate *estimate = estimate_find(&gpu_time_predictor, trace->key);
    uint8_t open = estimate ? atomic_load(&estimate->open) : 0;
    while (open && !atomic_compare_exchange_weak(&estimate->open, &open, (uint8_t)(open - 1))) { }
    atomic_store(&trace->state, TRACE_FREE);
}

static void correct(struct measured_lane *lane, int64_t ns)
{
    share_correct(lane->lane.share, ns);
    atomic_fetch_add(&lane->lane.unreported_ns, ns);
}

/* What a launch that ran between two moments cost: with `shared`, without the time that others had the GPU. */
static int64_t own_ns(struct measured_lane *lane, const struct trace *trace, int64_t from_ns, int64_t until_ns,
                      bool shared)
{
    int64_t away_ns = shared ? gpu_probe_away_ns(&lane->probe, from_ns, until_ns) : 0;
    double part = (double)past_part_ns(&lane->past, trace->stream, from_ns, until_ns);
    double whole = (double)(until_ns - from_ns);
    return whole > 0 ? (int64_t)(part - part / whole * (double)away_ns) : 0;
}

/* Whether a time may hold another process's turn that is not known well enough to take it off: turns of
 * others are seen to the millisecond. Told by the time alone: told by what was seen of others, the mean of
 * what is left would be wrong. */
static bool doubtful(const struct measured_lane *lane, struct estimate *estimate, int64_t ran_ns,
                     int64_t now_ns)
{
    uint64_t contended_ns = atomic_load(&lane->lane.share->contended_at_ns);
    if (!estimate || !atomic_load(&estimate->samples) || !contended_ns
        || now_ns - (int64_t)contended_ns >= CONTENDED_NS || ran_ns < SWITCH_NS || ran_ns > COARSE_NS)
        return false;
    int64_t expected_ns = atomic_load(&estimate->ns);
    bool steady = expected_ns < MS_NS && atomic_load(&estimate->deviation) < ESTIMATE_VARIES;
    return ran_ns > (steady ? expected_ns + expected_ns / 2 : 3 * expected_ns);
}

/* Times of a kind are doubtful one after the other: then it is the estimate that is wrong, and the shortest
 * of them is the best there is. */
static void doubt(struct measured_lane *lane, struct estimate *estimate, uint64_t key, int64_t ran_ns)
{
    struct doubt *doubt = &lane->doubts[key >> 32 & (DOUBTS - 1)];
    if (doubt->key != key || doubt->count == 0)
        *doubt = (struct doubt){.key = key, .least_ns = ran_ns};
    doubt->least_ns = ran_ns < doubt->least_ns ? ran_ns : doubt->least_ns;
    if (++doubt->count < DOUBTED)
        return;
    doubt->count = 0;
    atomic_store(&estimate->samples, 0);
    estimate_learn(estimate, key, doubt->least_ns);
}

/* It has ended: when it ran. False when that cannot be told. */
static bool measure(struct measured_lane *lane, struct trace *trace)
{
    float ms;
    if (real_cuda()->cuEventElapsedTime(&ms, trace->begin, trace->end) != CUDA_SUCCESS
        || !(ms >= 0 && ms < 1e9F))
        return false;
    int64_t from_ns = gpu_probe_time(&lane->probe, trace->begin);
    bool timed = from_ns != 0;
    if (!timed)
        from_ns = trace->began_ns;
    int64_t until_ns = from_ns + (int64_t)((double)ms * 1e6);
    /* The stream was idle: the first event waited for the launch, not for the GPU. */
    if (timed && from_ns < trace->launched_ns && trace->launched_ns - trace->began_ns < PUT_ASIDE_NS)
        from_ns = trace->launched_ns < until_ns ? trace->launched_ns : until_ns;
    if (!trace->running_since_ns)
        trace->run = past_began(&lane->past, trace->stream, from_ns);
    trace->running_since_ns = from_ns;
    trace->ran_until_ns = until_ns;
    past_ended(&lane->past, trace->run, from_ns, until_ns);
    return true;
}

static void settle(struct measured_lane *lane, struct trace *trace, int64_t now_ns)
{
    struct estimate *estimate = estimate_find(&gpu_time_predictor, trace->key);
    int64_t ran_ns = trace->ran_until_ns - trace->running_since_ns;
    bool in_doubt = !trace->edge && doubtful(lane, estimate, ran_ns, now_ns);
    if (trace->edge || in_doubt) {
        if (trace->charged_ns > trace->expected_ns) /* what was charged while it ran is as doubtful */
            correct(lane, trace->expected_ns - trace->charged_ns);
        if (in_doubt)
            doubt(lane, estimate, trace->key, ran_ns);
    } else {
        bool is_short = estimate && ran_ns < MS_NS && atomic_load(&estimate->samples) > 0;
        int64_t own = own_ns(lane, trace, trace->running_since_ns, trace->ran_until_ns, !is_short);
        correct(lane, own - trace->charged_ns);
        lane->doubts[trace->key >> 32 & (DOUBTS - 1)].count = 0;
        if (estimate)
            estimate_learn(estimate, trace->key, own);
    }
    finish(trace);
}

static void drop(struct measured_lane *lane, struct trace *trace)
{
    if (trace->running_since_ns)
        past_ended(&lane->past, trace->run, 0, 0);
    finish(trace);
}

/* Charge what has been running for longer than it was charged for, while it runs; and let nothing more go on
 * what was taken from the share before that was known. */
static void charge_running(struct measured_lane *lane, struct trace *trace, int64_t now_ns)
{
    if (lane->probe.out && lane->probe.residency.undecided > 1)
        return; /* nothing of ours runs at the moment */
    int64_t own = own_ns(lane, trace, trace->running_since_ns, now_ns, true);
    if (own - trace->charged_ns < MS_NS)
        return;
    struct estimate *estimate = estimate_find(&gpu_time_predictor, trace->key);
    if (estimate)
        estimate_raise(estimate, trace->key, own);
    correct(lane, own - trace->charged_ns);
    trace->charged_ns = own;
    int64_t tokens_ns = atomic_exchange(&lane->lane.tokens_ns, 0);
    correct(lane, -tokens_ns);
}

static void see_running(struct measured_lane *lane, struct trace *trace, int64_t now_ns)
{
    if (trace->running_since_ns || real_cuda()->cuEventQuery(trace->begin) != CUDA_SUCCESS)
        return;
    int64_t since_ns = gpu_probe_time(&lane->probe, trace->begin);
    trace->running_since_ns = since_ns ? since_ns : now_ns;
    trace->run = past_began(&lane->past, trace->stream, trace->running_since_ns);
}

/* See what has ended, then what runs: what ran beside something that has ended must be known by then. */
static bool look_at_traces(struct measured_lane *lane, int64_t now_ns)
{
    bool any = false;
    for (size_t i = 0; i < TRACES; i++) {
        struct trace *trace = &lane->traces[i];
        if (atomic_load(&trace->state) != TRACE_OUT)
            continue;
        CUresult result = real_cuda()->cuEventQuery(trace->end);
        any = true;
        trace->ended = result == CUDA_SUCCESS;
        if ((!trace->ended && result != CUDA_ERROR_NOT_READY) || (trace->ended && !measure(lane, trace)))
            drop(lane, trace);
    }
    for (size_t i = 0; any && i < TRACES; i++)
        if (atomic_load(&lane->traces[i].state) == TRACE_OUT && !lane->traces[i].ended)
            see_running(lane, &lane->traces[i], now_ns);
    return any;
}

static bool read_traces(struct measured_lane *lane, int64_t now_ns)
{
    bool any = look_at_traces(lane, now_ns);
    if (gpu_probe_read(&lane->probe, now_ns))
        atomic_store(&lane->lane.share->contended_at_ns, (uint64_t)now_ns);
    for (size_t i = 0; any && i < TRACES; i++) {
        struct trace *trace = &lane->traces[i];
        if (atomic_load(&trace->state) != TRACE_OUT)
            continue;
        if (trace->ended)
            settle(lane, trace, now_ns);
        else if (trace->running_since_ns)
            charge_running(lane, trace, now_ns);
    }
    return any;
}

bool gpu_time_measuring(struct lane *lane)
{
    for (size_t i = 0; i < TRACES; i++)
        if (atomic_load_explicit(&measured(lane)->traces[i].state, memory_order_relaxed) == TRACE_OUT)
            return true;
    return false;
}

static void report(struct lane *lane)
{
    int64_t spent_ns = atomic_exchange(&lane->unreported_ns, 0);
    if (spent_ns > 0)
        atomic_fetch_add(&lane->share->charged_ns, (uint64_t)spent_ns);
    else if (spent_ns < 0)
        atomic_fetch_add(&lane->unreported_ns, spent_ns); /* the counter never goes back */
}

/* The context is gone, or as good as gone: so are our events. */
static void give_up(struct measured_lane *lane)
{
    atomic_store(&lane->unreadable, true);
    lane->probe.context = NULL;
    for (size_t i = 0; i < TRACES; i++) {
        lane->traces[i].context = NULL;
        if (atomic_load(&lane->traces[i].state) == TRACE_OUT)
            drop(lane, &lane->traces[i]);
    }
}

static bool look_and_read(struct measured_lane *lane, bool look)
{
    const struct real_cuda *real = real_cuda();
    if (!lane->probe.context || atomic_exchange(&lane->polling, true))
        return false;
    depth_enter();
    bool any = false;
    CUcontext context = lane->probe.context;
    if (context && real->cuCtxPushCurrent_v2(context) == CUDA_SUCCESS) {
        int64_t now_ns = (int64_t)monotonic_ns();
        int mode = relax_capture();
        any = read_traces(lane, now_ns);
        if (look && (any || now_ns - (int64_t)atomic_load(&lane->lane.launched_at_ns) < LATELY_NS))
            gpu_probe_send(&lane->probe, now_ns);
        restore_capture(mode);
        real->cuCtxPopCurrent_v2(&context);
    } else if (context) {
        give_up(lane);
    }
    depth_leave();
    report(&lane->lane);
    atomic_store(&lane->polling, false);
    return any;
}

bool gpu_time_read(struct lane *lane)
{
    return look_and_read(measured(lane), false);
}

bool gpu_time_poll(int place)
{
    return atomic_load(&lanes[place].known) && look_and_read(&lanes[place], true);
}

/* --- the end of a context ------------------------------------------------------------------------------- */

enum { PATIENCE_MS = 100 };

static void leave_context(struct measured_lane *lane, CUcontext context)
{
    for (int ms = 0; ms < PATIENCE_MS && atomic_exchange(&lane->polling, true); ms++)
        monotonic_sleep_until(monotonic_ns() + MS_NS);
    if (!context || lane->probe.context == context)
        gpu_probe_close(&lane->probe);
    for (size_t i = 0; i < TRACES; i++) {
        struct trace *trace = &lane->traces[i];
        if (trace->context && (!context || trace->context == context)) {
            drop_events(trace);
            if (atomic_load(&trace->state) == TRACE_OUT)
                drop(lane, trace);
        }
    }
    atomic_store(&lane->unreadable, false);
    atomic_store(&lane->polling, false);
}

static void leave(CUcontext context, int place)
{
    depth_enter();
    for (int i = 0; i < MAX_DEVICES; i++)
        if (atomic_load(&lanes[i].known) && (context || place == i) && gpu_probe_possible())
            leave_context(&lanes[i], context);
    depth_leave();
}

void gpu_time_context_ends(CUcontext context)
{
    if (context)
        leave(context, -1);
}

void gpu_time_device_ends(CUdevice device)
{
    bool any = false;
    for (int i = 0; i < MAX_DEVICES; i++)
        any |= atomic_load(&lanes[i].known);
    if (any)
        leave(NULL, place_of_device(device));
}
