#include "gpu_probe.h"
#include "event_time.h"
#include "monotonic.h"

#include <string.h>

enum { OWN_EVENTS = 5, DELAYS = 64, LATE_MOST = 4, BEHIND_MOST = 24, BEHIND_ENOUGH = 12, BY_CHANCE = 8 };

#define PATIENCE_NS 100000 /* below, a probe was handled at once: latency, not another's turn */
#define PROMPT_NS 20000 /* below, nothing was before it */
#define ROUNDED_NS 1000 /* times of events that are the same may differ by as much */
#define PRECISE_NS 50000 /* of a call during which this thread was not put aside */
#define ANCHOR_NS INT64_C(500000000) /* elapsed times are floats: coarse when they are long */
#define STALE_NS (2 * ANCHOR_NS) /* nobody looked meanwhile, and the clocks have drifted apart */

bool gpu_probe_possible(void)
{
    const struct real_cuda *real = real_cuda();
    return real && real->cuCtxGetCurrent && real->cuCtxPushCurrent_v2 && real->cuCtxPopCurrent_v2
        && real->cuStreamCreateWithPriority && real->cuStreamDestroy_v2 && real->cuEventCreate
        && real->cuEventDestroy_v2 && real->cuEventRecord && real->cuEventQuery && real->cuEventElapsedTime;
}

bool gpu_probe_open(struct probe *probe, CUcontext context)
{
    const struct real_cuda *real = real_cuda();
    CUevent *events[] = {&probe->anchor, &probe->next_anchor, &probe->mark, &probe->events.first,
                         &probe->events.last};
    size_t made = 0;
    int priority = 0; /* the greatest, if there are several: another queue than those of most streams */
    if (real->cuCtxGetStreamPriorityRange)
        real->cuCtxGetStreamPriorityRange(NULL, &priority);
    /* All but what others may be looking at. */
    memset(&probe->stream, 0, sizeof *probe - offsetof(struct probe, stream));
    if (real->cuStreamCreateWithPriority(&probe->stream, STREAM_NON_BLOCKING, priority) != CUDA_SUCCESS)
        return false;
    /* This one waits for launches: what the program has of the least priority, or of the greatest, is not to
     * stand behind it in a queue of the hardware's. */
    if (priority / 2 == 0
        || real->cuStreamCreateWithPriority(&probe->events.stream, STREAM_NON_BLOCKING, priority / 2)
            != CUDA_SUCCESS)
        probe->events.stream = NULL;
    while (made < OWN_EVENTS && real->cuEventCreate(events[made], EVENT_TIMED) == CUDA_SUCCESS)
        made++;
    probe->anchored_ns = (int64_t)monotonic_ns();
    if (made == OWN_EVENTS && real->cuEventRecord(probe->anchor, probe->stream) == CUDA_SUCCESS) {
        probe->context = context;
        return true;
    }
    while (made > 0)
        real->cuEventDestroy_v2(*events[--made]);
    if (probe->events.stream)
        real->cuStreamDestroy_v2(probe->events.stream);
    real->cuStreamDestroy_v2(probe->stream);
    return false;
}

int64_t gpu_probe_time(const struct probe *probe, CUevent event)
{
    int64_t since_ns;
    if (!probe->context || !probe->anchor_at_ns || !event_elapsed(probe->anchor, event, &since_ns))
        return 0;
    return probe->anchor_at_ns + since_ns;
}

/* With the next probe: its times are not known until then. */
static void begin_anew(struct probe *probe)
{
    probe->anchor_at_ns = probe->anchored_ns = probe->delays = probe->late = 0;
    probe->anchoring = false;
}

/* The anchor is handled some time after it was sent, how much later is not known, and the two clocks drift.
 * But nothing is handled before it was sent, and of many probes one is handled at once. */
static void calibrate(struct probe *probe, int64_t handled_ns)
{
    int64_t delay_ns = handled_ns - probe->sent_ns;
    if (!probe->precise)
        return;
    if (delay_ns < 0) {
        probe->anchor_at_ns -= delay_ns;
        delay_ns = 0;
    }
    if (probe->delays == 0 || delay_ns < probe->least_delay_ns)
        probe->least_delay_ns = delay_ns;
    if (++probe->delays < DELAYS)
        return;
    probe->delays = 0;
    if (probe->least_delay_ns < PATIENCE_NS) {
        probe->anchor_at_ns -= probe->least_delay_ns;
        probe->late = 0;
    } else if (++probe->late >= LATE_MOST) {
        begin_anew(probe); /* nobody has the GPU whenever we look: the clocks have drifted apart */
    }
}

static void read_anchor(struct probe *probe, int64_t now_ns)
{
    const struct real_cuda *real = real_cuda();
    int64_t since_ns;
    if (!probe->anchor_at_ns && probe->anchored_ns && real->cuEventQuery(probe->anchor) == CUDA_SUCCESS)
        probe->anchor_at_ns = probe->anchored_ns;
    if (probe->anchoring && real->cuEventQuery(probe->next_anchor) == CUDA_SUCCESS) {
        probe->anchoring = false;
        if (event_elapsed(probe->anchor, probe->next_anchor, &since_ns)) {
            CUevent before = probe->anchor;
            probe->anchor = probe->next_anchor;
            probe->next_anchor = before;
            probe->anchor_at_ns += since_ns;
        }
    }
    if (!probe->anchoring && probe->anchor_at_ns && now_ns - probe->anchor_at_ns > STALE_NS)
        begin_anew(probe);
}

/* Elapsed times are exact only from an anchor that is near. */
static void move_anchor(struct probe *probe, int64_t now_ns)
{
    bool anew = !probe->anchored_ns;
    if (probe->anchoring || (!anew && (!probe->anchor_at_ns || now_ns - probe->anchored_ns < ANCHOR_NS)))
        return;
    if (real_cuda()->cuEventRecord(anew ? probe->anchor : probe->next_anchor, probe->stream) != CUDA_SUCCESS)
        return;
    probe->anchored_ns = now_ns;
    probe->anchoring = !anew;
}

static signed char *behind_of(struct probe *probe, uint64_t stream)
{
    return &probe->behind[stream * UINT64_C(0x9e3779b97f4a7c15) >> (64 - PROBE_STREAM_BITS)];
}

/* Whether it was late because it stood behind our own launches, in a queue of the hardware's. It did if one
 * ended meanwhile, as we had the GPU then. One that ended together with it is what it waited for, or was over
 * when others' turn began, its event being due. Where probes stand behind what runs on a stream, none is
 * prompt while something does; others' turns leave more of those than of ends that are due. */
static bool stood_behind(struct probe *probe, const struct past *past, uint64_t context, int64_t handled_ns)
{
    int64_t late_ns = probe->sent_ns + PATIENCE_NS;
    bool prompt = handled_ns < probe->sent_ns + PROMPT_NS, behind = false;
    int64_t event_ns = event_cost_ns(&probe->events), alike_ns = ROUNDED_NS + event_ns;
    for (size_t i = 0; i < PAST_RUNS; i++) {
        const struct past_run *run = &past->runs[i];
        if (past_context(run->stream) != context)
            continue;
        signed char *score = behind_of(probe, run->stream);
        if (prompt)
            *score -= *score > 0 && run->from_ns < probe->sent_ns && run->until_ns > handled_ns + alike_ns;
        else if (run->until_ns <= late_ns || run->until_ns > handled_ns + alike_ns)
            continue;
        else if (run->until_ns < handled_ns - alike_ns)
            behind = (*score = BEHIND_MOST);
        else {
            behind |= *score > BEHIND_ENOUGH;
            *score += *score < BEHIND_MOST && run->cost_ns >= BY_CHANCE * event_ns;
        }
    }
    return behind;
}

bool gpu_probe_read(struct probe *probe, const struct past *past, uint64_t context, int64_t now_ns, bool look)
{
    const struct real_cuda *real = real_cuda();
    if (!probe->context)
        return false;
    read_anchor(probe, now_ns);
    if (!probe->out)
        return false;
    CUresult result = real->cuEventQuery(probe->mark);
    if (result == CUDA_ERROR_NOT_READY)
        return now_ns - probe->sent_ns > PATIENCE_NS;
    int64_t handled_ns = result == CUDA_SUCCESS ? gpu_probe_time(probe, probe->mark) : 0;
    if (handled_ns)
        calibrate(probe, handled_ns);
    probe->out = false;
    probe->residency.next_ns = (int64_t)monotonic_ns();
    probe->residency.next_later = !look;
    if (stood_behind(probe, past, context, handled_ns))
        handled_ns = 0;
    /* It was out as this look began: were that left out, the ends of others' turns would be seldom looked at.
     */
    if (look && handled_ns > now_ns)
        residency_look(&probe->residency, now_ns, probe->running);
    return residency_handled(&probe->residency, handled_ns ? handled_ns : probe->sent_ns, PATIENCE_NS);
}

void gpu_probe_send(struct probe *probe, int64_t now_ns)
{
    if (!probe->context)
        return;
    move_anchor(probe, now_ns);
    if (!probe->out) {
        int64_t before_ns = (int64_t)monotonic_ns();
        if (real_cuda()->cuEventRecord(probe->mark, probe->stream) != CUDA_SUCCESS)
            return;
        probe->sent_ns = (int64_t)monotonic_ns();
        probe->precise = probe->sent_ns - before_ns < PRECISE_NS;
        probe->out = true;
        now_ns = probe->sent_ns;
    }
    residency_look(&probe->residency, now_ns, probe->running);
}
