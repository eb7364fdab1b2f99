/* Who looks at what is being measured, and the end of what it is measured in. */
#include "busy.h"
#include "counters.h"
#include "depth.h"
#include "fp_mode.h"
#include "gpu_traces.h"
#include "monotonic.h"
#include "real.h"
#include "reclaim.h"

#define LATELY_NS (10 * MS_NS)
#define SWEPT_OFTEN_NS (60 * MS_NS)
#define AGAIN_NS (MS_NS / 50)

enum { LEFT_OUT_MOST = 1 }; /* looks in a row */

/* Whether there is more to show. Once, for size. */
__attribute__((noinline)) static bool report(struct measured_lane *of)
{
    struct lane *lane = &of->lane;
    int64_t spent_ns = atomic_exchange(&lane->unreported_ns, 0);
    if (spent_ns > 0)
        count_more(&lane->share->charged_ns, (uint64_t)spent_ns);
    else
        count_more_ns(&lane->unreported_ns, spent_ns); /* the counter never goes back */
    return busy_charged(&of->shown, of->place, spent_ns);
}

/* The context is gone (NULL: all are, or as good as gone), and with it our events. */
static void forget(struct measured_lane *lane, CUcontext context)
{
    for (size_t i = 0; i < PROBES; i++)
        if ((!context || lane->probes[i].context == context)
            && atomic_exchange(&lane->probes[i].context, NULL))
            atomic_fetch_sub(&lane->lane.contexts, 1);
    for (struct trace *trace = lane->traces; trace < lane->traces + lane->opened; trace++) {
        if (context && trace->context != context)
            continue;
        trace->context = NULL;
    }
    for (struct trace *trace = NULL; (trace = trace_next(lane, trace));)
        if (!trace->context)
            trace_drop(lane, trace);
    loose_store(&lane->lane.queued_ns, 0);
}

/* A context that there is something to read in. */
static CUcontext context_to_read(struct measured_lane *lane)
{
    CUcontext context = NULL;
    for (size_t i = 0; i < PROBES && !context; i++)
        context = lane->probes[i].context;
    const struct trace *out = context ? NULL : trace_next(lane, NULL);
    return out ? out->context : context;
}

/* The end of the last one that is being measured in a context and not over, as far as seen. One that takes
 * long is not waited for: a queue of the hardware's that our stream shares with one of the program's would
 * wait, too.
 */
static CUevent unfinished_in(const struct measured_lane *lane, CUcontext context)
{
    for (size_t i = lane->orders; i > 0; i--) {
        const struct trace *trace = &lane->traces[lane->order[i - 1]];
        if (trace->ordered && trace->context == context && !trace->ended && trace->expected_ns < MS_NS)
            return trace->end;
    }
    return NULL;
}

/* Look in each context that has something to do. A probe in another would have the GPU change to it. */
static void send_probes(struct measured_lane *lane, int64_t now_ns)
{
    const struct real_cuda *real = real_cuda();
    for (struct probe *probe = lane->probes; probe < lane->probes + PROBES; probe++) {
        CUcontext context = probe->context;
        bool lately = (int64_t)loose_load(&lane->lane.measured_at_ns) - probe->measured_ns < LATELY_NS;
        if (!context || !(lately || probe->running || probe->queued)
            || real->cuCtxPushCurrent_v2(context) != CUDA_SUCCESS)
            continue;
        gpu_probe_send(probe, now_ns);
        event_cost_look(&probe->events, unfinished_in(lane, context));
        real->cuCtxPopCurrent_v2(&context);
    }
}

/* Who waits for the budget reads all the time, which would leave no room for looks, by which turns of others
 * are seen: where they were left out for that, nobody else begins to read while the next one is due. */
static bool begin_reading(struct measured_lane *lane, bool look)
{
    if (!look)
        return !atomic_load(&lane->look_due) && !atomic_exchange(&lane->polling, true);
    bool others = atomic_exchange(&lane->polling, true);
    if (others && ++lane->left_out > LEFT_OUT_MOST) {
        uint64_t now_ns = monotonic_ns(), until_ns = now_ns + MS_NS;
        atomic_store(&lane->look_due, true);
        for (; others && !atomic_load(&lane->ending) && now_ns < until_ns; now_ns += AGAIN_NS) {
            monotonic_sleep_until(now_ns + AGAIN_NS);
            others = atomic_exchange(&lane->polling, true);
        }
        atomic_store(&lane->look_due, false);
    }
    if (!others)
        lane->left_out = 0;
    return !others;
}

static bool look_and_read(struct measured_lane *lane, bool look)
{
    const struct real_cuda *real = real_cuda();
    if (!begin_reading(lane, look))
        return false;
    unsigned mode = fp_mode_own();
    depth_enter();
    bool any = false;
    CUcontext context = context_to_read(lane);
    if (context && real->cuCtxPushCurrent_v2(context) == CUDA_SUCCESS) {
        int64_t now_ns = (int64_t)monotonic_ns();
        struct quiet quiet = quiet_begin();
        any = gpu_read_traces(lane, now_ns, look);
        if (look && (any || now_ns - (int64_t)loose_load(&lane->lane.launched_at_ns) < LATELY_NS))
            send_probes(lane, now_ns);
        quiet_end(quiet);
        real->cuCtxPopCurrent_v2(&context);
    } else if (context) {
        loose_store(&lane->unreadable_at_ns, monotonic_ns());
        forget(lane, NULL);
    }
    depth_leave();
    report(lane);
    atomic_store(&lane->polling, false);
    fp_mode_back(mode);
    return any;
}

bool gpu_time_read(struct lane *lane)
{
    return look_and_read(traces_of(lane), false);
}

bool gpu_time_poll(int place)
{
    struct lane *lane = atomic_load(&gpu_lanes[place]);
    return lane && look_and_read(traces_of(lane), true);
}

/* A sweep beside others seldom lasts for longer than it is looked at often; those that do are not to fill
 * what is kept of looks. */
static int64_t poll_every_ns(const struct lane *lane, uint64_t now_ns)
{
    if (loose_load(&lane->sweep_out) > 0 && share_contended(lane->share, now_ns)
        && elapsed_ns(loose_load(&lane->swept_at_ns), now_ns) < SWEPT_OFTEN_NS)
        return MS_NS / 4;
    return gpu_time_several_contexts(lane) ? MS_NS / 2 : MS_NS;
}

int64_t gpu_time_poll_every_ns(void)
{
    int64_t least_ns = MS_NS;
    for (int place = 0; place < MAX_DEVICES; place++) {
        const struct lane *lane = atomic_load(&gpu_lanes[place]);
        int64_t every_ns = lane ? poll_every_ns(lane, monotonic_ns()) : MS_NS;
        least_ns = every_ns < least_ns ? every_ns : least_ns;
    }
    return least_ns;
}

bool gpu_time_show(void)
{
    bool left = false;
    for (int place = 0; place < MAX_DEVICES; place++) {
        struct measured_lane *lane = traces_of(atomic_load(&gpu_lanes[place]));
        if (!lane)
            continue;
        bool others = atomic_exchange(&lane->polling, true);
        left |= others || report(lane);
        if (!others)
            atomic_store(&lane->polling, false);
    }
    return left;
}

/* --- the end of a context ------------------------------------------------------------------------------- */

/* How long a launch is waited for: as much of it as is charged. */
#define PATIENCE_NS SHARE_DEBT_NS
#define LOOK_EVERY_NS 200000

static bool in_use(const struct measured_lane *lane, CUcontext context, bool measuring)
{
    bool used = trace_find_probe(lane, context) < PROBES && !measuring;
    for (size_t i = 0; i < lane->opened && !used; i++)
        used = lane->traces[i].context == context && (!measuring || lane->traces[i].taken);
    return used;
}

uint32_t gpu_time_context_ending(CUcontext context, bool last)
{
    uint32_t held = 0;
    for (int i = 0; context && i < MAX_DEVICES; i++) {
        struct measured_lane *lane = traces_of(atomic_load(&gpu_lanes[i]));
        if (!lane || !in_use(lane, context, false))
            continue;
        uint64_t now_ns = monotonic_ns(), until_ns = now_ns + PATIENCE_NS;
        atomic_store(&lane->ending, context);
        for (; last && now_ns < until_ns && in_use(lane, context, true); now_ns += LOOK_EVERY_NS) {
            look_and_read(lane, false);
            monotonic_sleep_until(now_ns + LOOK_EVERY_NS);
        }
        bool theirs = atomic_exchange(&lane->polling, true);
        for (; theirs && now_ns < until_ns; now_ns += LOOK_EVERY_NS) {
            monotonic_sleep_until(now_ns + LOOK_EVERY_NS);
            theirs = atomic_exchange(&lane->polling, true);
        }
        held |= theirs ? 0 : UINT32_C(1) << i;
    }
    return held;
}

void gpu_time_context_ended(uint32_t held, CUcontext context, bool ended)
{
    for (int i = 0; context && i < MAX_DEVICES; i++) {
        struct measured_lane *lane = traces_of(atomic_load(&gpu_lanes[i]));
        if (!lane)
            continue;
        if (ended) {
            forget(lane, context);
            loose_store(&lane->unreadable_at_ns, 0); /* in another, it may be possible */
        }
        if (atomic_load(&lane->ending) == context)
            atomic_store(&lane->ending, NULL);
        if (held & UINT32_C(1) << i)
            atomic_store(&lane->polling, false);
    }
}
