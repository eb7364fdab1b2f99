/* Work within a stream is done in order; kernels of different streams of a context share its GPU evenly;
 * contexts take turns on the GPU in slices, and what one has not finished waits for its next turn.
 */
#include "engine.h"

static struct item *head_of(struct stream_row *stream)
{
    return &stream->ring[stream->head % RING];
}

static const struct item *head_in(const struct stream_row *stream)
{
    return &stream->ring[stream->head % RING];
}

static bool empty(const struct stream_row *stream)
{
    return stream->head >= stream->tail;
}

/* Streams of a lane; a torn list ends early instead of going round for ever. */
#define EACH_STREAM(execution, lane, index)                                                                  \
    for (uint32_t index = (execution)->lanes[lane].streams, bound_ = 0;                                      \
         index < MAX_STREAMS && bound_ < MAX_STREAMS; index = (execution)->streams[index].next, bound_++)

/* The legacy stream and the blocking streams of a context wait for each other's earlier work. */
static bool out_of_order(const struct execution *execution, const struct stream_row *stream)
{
    if (stream->flags & STREAM_NON_BLOCKING)
        return false;
    bool legacy = stream->flags & STREAM_LEGACY;
    uint64_t order = head_in(stream)->order;
    EACH_STREAM (execution, stream->lane, i) {
        const struct stream_row *other = &execution->streams[i];
        if (other == stream || empty(other) || other->flags & STREAM_NON_BLOCKING)
            continue;
        if ((legacy || other->flags & STREAM_LEGACY) && head_in(other)->order < order)
            return true;
    }
    return false;
}

/* Streams that share a hardware queue: what stands in it waits until all that was put there before, into
 * other streams, has begun. An event or a wait begins when it is over. */
static bool queued_behind(const struct execution *execution, const struct stream_row *stream)
{
    uint32_t queues = execution->connections;
    if (!queues)
        return false;
    uint64_t order = head_in(stream)->order;
    EACH_STREAM (execution, stream->lane, i) {
        const struct stream_row *other = &execution->streams[i];
        if (other == stream || empty(other) || other->number % queues != stream->number % queues
            || STREAM_PRIORITY(other->flags) != STREAM_PRIORITY(stream->flags))
            continue;
        uint64_t first = other->head + (head_in(other)->kind == ITEM_KERNEL);
        if (first < other->tail && other->ring[first % RING].order < order)
            return true;
    }
    return false;
}

static bool ready(const struct execution *execution, const struct stream_row *stream)
{
    if (empty(stream))
        return false;
    const struct item *item = head_in(stream);
    if (item->arrival_ns > execution->now_ns || out_of_order(execution, stream)
        || queued_behind(execution, stream))
        return false;
    return item->kind != ITEM_WAIT || item->event >= MAX_STREAM_EVENTS
        || execution->events[item->event].done_turn >= item->turn;
}

/* Whether what runs waits for its counterparts on other GPUs. */
static bool waits_in_place(const struct execution *execution, const struct item *item)
{
    unsigned begun = 0;
    for (size_t i = 0; item->meeting.number && i < MAX_GPUS; i++)
        begun += execution->met[item->meeting.number - 1].begun[i] > item->turn;
    return begun < item->meeting.gpus;
}

static void begin(struct execution *execution, const struct lane_row *lane, const struct item *item)
{
    uint64_t *begun =
        item->meeting.number ? &execution->met[item->meeting.number - 1].begun[lane->gpu] : NULL;
    if (begun && *begun <= item->turn)
        *begun = item->turn + 1;
}

static bool lane_ready(const struct execution *execution, uint32_t lane)
{
    if (!execution->lanes[lane].pending)
        return false;
    EACH_STREAM (execution, lane, i)
        if (ready(execution, &execution->streams[i]))
            return true;
    return false;
}

static void retire(struct execution *execution, struct lane_row *lane, struct stream_row *stream)
{
    struct item *item = head_of(stream);
    if (item->kind == ITEM_EVENT && item->event < MAX_STREAM_EVENTS) {
        struct event_row *event = &execution->events[item->event];
        if (event->done_turn < item->turn) {
            event->done_turn = item->turn;
            event->done_ns = execution->now_ns;
        }
    } else if (item->kind == ITEM_KERNEL) {
        lane->kernels++;
    }
    stream->head++;
    if (lane->pending)
        lane->pending--;
}

/* Finish all of the lane that takes no time, and count the kernels that run, and the events. */
static bool drain(struct execution *execution, uint32_t lane_index, struct gpu_row *gpu)
{
    struct lane_row *lane = &execution->lanes[lane_index];
    bool retired = false;
    for (bool more = true; more;) {
        more = false;
        gpu->running = gpu->recording = 0;
        EACH_STREAM (execution, lane_index, i) {
            struct stream_row *stream = &execution->streams[i];
            while (ready(execution, stream) && head_of(stream)->work == 0) {
                retire(execution, lane, stream);
                more = true; /* another stream may have waited for it */
            }
            if (ready(execution, stream)) {
                begin(execution, lane, head_of(stream));
                ++*(head_of(stream)->kind == ITEM_KERNEL ? &gpu->running : &gpu->recording);
            }
        }
        retired |= more;
    }
    return retired;
}

/* Place of the next lane after the one whose turn it is that has something to do, or NOTHING. */
static uint32_t next_turn(const struct execution *execution, const struct gpu_row *gpu, bool itself)
{
    for (uint32_t i = 1; i < gpu->lane_count + itself; i++) {
        uint32_t place = (gpu->turn + i) % gpu->lane_count;
        if (lane_ready(execution, gpu->lanes[place]))
            return place;
    }
    return NOTHING;
}

static bool is_in_use(const struct gpu_row *gpu)
{
    return gpu->running || gpu->recording;
}

/* Decide who has the GPU now. True if anything finished. */
static bool settle(struct execution *execution, struct gpu_row *gpu)
{
    bool retired = false;
    gpu->running = gpu->recording = 0;
    while (gpu->lane_count) {
        gpu->turn %= gpu->lane_count;
        uint32_t lane = gpu->lanes[gpu->turn];
        if (!lane_ready(execution, lane)) {
            uint32_t next = next_turn(execution, gpu, false);
            if (next == NOTHING)
                return retired;
            gpu->turn = next;
            gpu->slice_end_ns = execution->now_ns + execution->slice_ns;
        } else if (execution->now_ns >= gpu->slice_end_ns) {
            uint32_t next = next_turn(execution, gpu, true);
            gpu->turn = next == NOTHING ? gpu->turn : next;
            gpu->slice_end_ns = execution->now_ns + execution->slice_ns;
        } else {
            retired |= drain(execution, lane, gpu);
            if (is_in_use(gpu))
                return retired;
        }
    }
    return retired;
}

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* How many have a part of the time in which this is worked at: events wait beside what runs. */
static uint64_t parts_beside(const struct gpu_row *gpu, const struct item *item)
{
    return item->kind == ITEM_KERNEL && gpu->running ? gpu->running : 1;
}

/* When the GPU next needs a decision, if that is before `limit_ns`. */
static uint64_t next_decision(const struct execution *execution, const struct gpu_row *gpu, uint64_t limit_ns)
{
    for (uint32_t place = 0; place < gpu->lane_count; place++) {
        uint32_t lane = gpu->lanes[place];
        bool has_gpu = is_in_use(gpu) && place == gpu->turn;
        if (!execution->lanes[lane].pending)
            continue;
        EACH_STREAM (execution, lane, i) {
            const struct stream_row *stream = &execution->streams[i];
            if (empty(stream))
                continue;
            uint64_t arrival_ns = head_in(stream)->arrival_ns;
            if (arrival_ns > execution->now_ns)
                limit_ns = least(limit_ns, arrival_ns);
            else if (has_gpu && ready(execution, stream) && !waits_in_place(execution, head_in(stream)))
                /* a slice only ends when somebody waits */
                limit_ns = least(limit_ns,
                                 execution->now_ns
                                     + ((head_in(stream)->work * parts_beside(gpu, head_in(stream))
                                         + (1 << WORK_SHIFT) - 1)
                                        >> WORK_SHIFT));
            else if (is_in_use(gpu) && !has_gpu && ready(execution, stream))
                limit_ns = least(limit_ns, gpu->slice_end_ns);
        }
    }
    return limit_ns;
}

static void work(struct execution *execution, struct gpu_row *gpu, uint64_t elapsed_ns)
{
    if (!is_in_use(gpu))
        return;
    uint32_t lane = gpu->lanes[gpu->turn];
    EACH_STREAM (execution, lane, i) {
        struct stream_row *stream = &execution->streams[i];
        if (ready(execution, stream) && !waits_in_place(execution, head_in(stream))) {
            struct item *item = head_of(stream);
            item->work -= least(item->work, (elapsed_ns << WORK_SHIFT) / parts_beside(gpu, item));
        }
    }
    if (!gpu->running)
        return;
    execution->lanes[lane].busy_ns += elapsed_ns;
    gpu->busy_ns += elapsed_ns;
}

void engine_advance(struct execution *execution, uint64_t limit_ns, bool stop)
{
    while (true) {
        bool retired = false;
        for (size_t i = 0; i < MAX_GPUS && execution->gpus[i].uuid[0]; i++)
            retired |= settle(execution, &execution->gpus[i]);
        if (retired && stop)
            return;
        if (execution->now_ns >= limit_ns)
            return;
        uint64_t next_ns = limit_ns;
        for (size_t i = 0; i < MAX_GPUS && execution->gpus[i].uuid[0]; i++)
            next_ns = least(next_ns, next_decision(execution, &execution->gpus[i], limit_ns));
        uint64_t elapsed_ns = next_ns - execution->now_ns;
        for (size_t i = 0; i < MAX_GPUS && execution->gpus[i].uuid[0]; i++)
            work(execution, &execution->gpus[i], elapsed_ns);
        execution->now_ns = next_ns;
    }
}

uint64_t engine_next_ns(const struct execution *execution)
{
    uint64_t next_ns = UINT64_MAX;
    for (size_t i = 0; i < MAX_GPUS && execution->gpus[i].uuid[0]; i++)
        next_ns = least(next_ns, next_decision(execution, &execution->gpus[i], UINT64_MAX));
    return next_ns;
}

void engine_end_lane(struct execution *execution, uint32_t lane_index)
{
    struct lane_row *lane = &execution->lanes[lane_index];
    struct gpu_row *gpu = &execution->gpus[lane->gpu];
    EACH_STREAM (execution, lane_index, i) {
        execution->streams[i].head = execution->streams[i].tail;
        execution->streams[i].flags = 0;
    }
    for (size_t i = 0; i < MAX_KERNELS; i++)
        if (execution->met[i].pushed[lane->gpu])
            execution->met[i].begun[lane->gpu] = UINT64_MAX; /* who is gone is waited for no more */
    lane->streams = NOTHING;
    lane->pending = 0;
    lane->state = LANE_ENDED;
    for (uint32_t i = 0; i < execution->event_high; i++)
        if (execution->events[i].owner == lane_index + 1)
            execution->events[i].owner = 0;
    uint32_t kept = 0;
    uint32_t turn = gpu->turn;
    for (uint32_t place = 0; place < gpu->lane_count; place++) {
        if (gpu->lanes[place] != lane_index) {
            gpu->lanes[kept++] = gpu->lanes[place];
            continue;
        }
        if (place == gpu->turn)
            gpu->slice_end_ns = 0; /* the next in line gets a slice of its own */
        if (place <= gpu->turn)
            turn = gpu->turn ? gpu->turn - 1 : gpu->lane_count; /* before the first is after the last */
    }
    gpu->lane_count = kept;
    gpu->turn = kept ? (uint32_t)least(turn, kept - 1) : 0;
}

uint64_t engine_least_ns(const struct execution *execution, uint32_t index, uint64_t target)
{
    const struct stream_row *stream = &execution->streams[index];
    uint64_t work_left = 0;
    for (uint64_t i = stream->head; i < target && i < stream->tail; i++)
        if (stream->ring[i % RING].kind == ITEM_KERNEL)
            work_left += stream->ring[i % RING].work;
    return work_left >> WORK_SHIFT;
}
