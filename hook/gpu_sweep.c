#include "gpu_sweep.h"

enum {
    STREAMS = 64, /* that are told apart */
    OFTEN = 3, /* launches of a stream, of which fewer say nothing of what it did before and after */
    ENOUGH = 8, /* launches that began while all was measured; with fewer, nothing is told, */
    MOST_FUTILE = 16, /* unless that were so many sweeps: then each launch is judged by itself */
};

#define PATIENCE_NS (50 * MS_NS) /* after its last launch no other of the sweep is waited for */
#define LEAST_SCALE 0.125

struct seen {
    uint64_t stream;
    int launches;
    int64_t from_ns, until_ns; /* its first launch of the sweep began, its last one ended */
};

static bool of_sweep(struct trace *trace)
{
    return atomic_load(&trace->state) == TRACE_OUT && trace->sweep;
}

static struct seen *find(struct seen *seen, int *count, uint64_t stream)
{
    int i = 0;
    while (i < *count && seen[i].stream != stream)
        i++;
    if (i == *count && i == STREAMS)
        return &seen[i - 1];
    if (i == *count)
        seen[(*count)++] = (struct seen){.stream = stream, .from_ns = INT64_MAX};
    return &seen[i];
}

static void note(struct seen *seen, const struct trace *trace, int64_t now_ns)
{
    int64_t from_ns = trace->running_since_ns ? trace->running_since_ns : now_ns;
    int64_t until_ns = trace->ended ? trace->ran_until_ns : now_ns;
    seen->launches++;
    seen->from_ns = from_ns < seen->from_ns ? from_ns : seen->from_ns;
    seen->until_ns = until_ns > seen->until_ns ? until_ns : seen->until_ns;
}

/* When every stream was being measured. */
static void find_window(struct measured_lane *lane, struct sweep *sweep, int64_t now_ns)
{
    struct seen seen[STREAMS];
    int count = 0;
    for (size_t i = 0; i < TRACES; i++)
        if (of_sweep(&lane->traces[i]))
            note(find(seen, &count, lane->traces[i].stream), &lane->traces[i], now_ns);
    sweep->from_ns = 0;
    sweep->until_ns = INT64_MAX;
    for (int i = 0; i < count; i++) {
        if (seen[i].launches < OFTEN)
            continue;
        sweep->from_ns = seen[i].from_ns > sweep->from_ns ? seen[i].from_ns : sweep->from_ns;
        sweep->until_ns = seen[i].until_ns < sweep->until_ns ? seen[i].until_ns : sweep->until_ns;
    }
}

bool gpu_sweep_has(const struct sweep *sweep, const struct trace *trace)
{
    return trace->running_since_ns >= sweep->from_ns && trace->running_since_ns < sweep->until_ns;
}

/* The part of a launch that was in the window. */
static int64_t inside_ns(const struct measured_lane *lane, const struct sweep *sweep,
                         const struct trace *trace)
{
    int64_t from_ns = trace->running_since_ns > sweep->from_ns ? trace->running_since_ns : sweep->from_ns;
    int64_t until_ns = trace->ran_until_ns < sweep->until_ns ? trace->ran_until_ns : sweep->until_ns;
    return from_ns < until_ns ? past_part_ns(&lane->past, trace->stream, from_ns, until_ns) : 0;
}

struct sweep gpu_sweep_see(struct measured_lane *lane, int64_t now_ns)
{
    struct sweep sweep = {.over = true, .scale = 1};
    int64_t last_ns = 0, began = 0, worked_ns = 0, seeming_ns = 0;
    bool running = atomic_load(&lane->lane.sweep_left) > 0;
    for (size_t i = 0; i < TRACES; i++) {
        struct trace *trace = &lane->traces[i];
        if (!of_sweep(trace))
            continue;
        last_ns = trace->launched_ns > last_ns ? trace->launched_ns : last_ns;
        running |= !trace->ended;
    }
    if (!last_ns || (running && now_ns - last_ns < PATIENCE_NS)) {
        sweep.over = false;
        return sweep;
    }
    atomic_store(&lane->lane.sweep_left, 0);
    find_window(lane, &sweep, now_ns);
    for (size_t i = 0; i < TRACES; i++) {
        struct trace *trace = &lane->traces[i];
        if (!of_sweep(trace) || !trace->ended)
            continue;
        worked_ns += inside_ns(lane, &sweep, trace);
        if (!gpu_sweep_has(&sweep, trace))
            continue;
        began++;
        seeming_ns += past_part_ns(&lane->past, trace->stream, trace->running_since_ns, trace->ran_until_ns);
    }
    bool enough = began >= ENOUGH && seeming_ns > 0;
    lane->futile_sweeps = enough ? 0 : lane->futile_sweeps + 1;
    if (enough) {
        double scale = (double)worked_ns / (double)seeming_ns;
        sweep.scale = scale > 1 ? 1 : scale < LEAST_SCALE ? LEAST_SCALE : scale;
    } else if (lane->futile_sweeps > MOST_FUTILE || !share_contended(lane->lane.share, (uint64_t)now_ns)) {
        sweep.from_ns = 0;
        sweep.until_ns = INT64_MAX;
    } else {
        sweep.until_ns = sweep.from_ns;
    }
    return sweep;
}

void gpu_sweep_level(struct measured_lane *lane)
{
    for (size_t i = 0; i < TRACES; i++) {
        struct trace *trace = &lane->traces[i];
        int64_t sum_ns = 0, count = 0;
        for (size_t j = 0; of_sweep(trace) && trace->ended && trace->told && j < TRACES; j++) {
            struct trace *other = &lane->traces[j];
            bool same = of_sweep(other) && other->ended && other->told && other->key == trace->key;
            sum_ns += same ? other->single_ns : 0;
            count += same;
        }
        if (count)
            trace->own_ns = sum_ns / count;
    }
}
