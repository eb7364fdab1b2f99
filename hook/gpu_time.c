#include "gpu_time.h"
#include "depth.h"
#include "devices.h"
#include "gpu_traces.h"
#include "monotonic.h"
#include "real.h"
#include "region.h"

#include <pthread.h>
#include <stddef.h>
#include <string.h>

enum { CAPTURE_RELAXED = 2 };

#define LATELY_NS (10 * MS_NS)

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
            gpu_drop_trace(lane, &lane->traces[i]);
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
        any = gpu_read_traces(lane, now_ns);
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
                gpu_drop_trace(lane, trace);
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
