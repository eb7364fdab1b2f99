#include "execution.h"

#include "clock.h"
#include "engine.h"

/* --- streams -------------------------------------------------------------------------------------------- */

static struct stream_row *stream_of(struct execution *execution, uint32_t stream)
{
    if (!stream || stream > MAX_STREAMS)
        return NULL;
    struct stream_row *row = &execution->streams[stream - 1];
    return row->flags & STREAM_IN_USE && execution_owns(execution, row->lane) ? row : NULL;
}

/* Rows of closed streams whose work is done leave the list. */
static void collect(struct execution *execution, uint32_t lane)
{
    uint32_t *link = &execution->lanes[lane].streams;
    for (uint32_t bound = 0; *link < MAX_STREAMS && bound < MAX_STREAMS; bound++) {
        struct stream_row *row = &execution->streams[*link];
        if (row->flags & STREAM_CLOSING && row->head >= row->tail) {
            *link = row->next;
            row->flags = 0;
        } else {
            link = &row->next;
        }
    }
}

static uint32_t streams_as_urgent(const struct execution *execution, uint32_t lane, uint32_t flags)
{
    uint32_t count = 0;
    for (uint32_t i = execution->lanes[lane].streams; i < MAX_STREAMS; i = execution->streams[i].next)
        count += STREAM_PRIORITY(execution->streams[i].flags) == STREAM_PRIORITY(flags);
    return count;
}

uint32_t execution_stream(const char *uuid, uint64_t context, uint32_t flags)
{
    struct execution *execution = execution_lock();
    if (!execution)
        return 0;
    uint32_t lane = execution_lane(execution, uuid, context, true);
    uint32_t stream = 0;
    if (lane != NOTHING) {
        execution_catch_up(execution);
        collect(execution, lane);
    }
    for (uint32_t i = 0; lane != NOTHING && !stream && i < MAX_STREAMS; i++) {
        struct stream_row *row = &execution->streams[i];
        if (row->flags)
            continue;
        row->head = row->tail; /* counting goes on: somebody may still wait for what was done before */
        row->lane = lane;
        row->number = streams_as_urgent(execution, lane, flags);
        row->flags = flags | STREAM_IN_USE;
        row->next = execution->lanes[lane].streams;
        execution->lanes[lane].streams = i;
        stream = i + 1;
    }
    execution_unlock(execution);
    return stream;
}

void execution_close(uint32_t stream)
{
    struct execution *execution = execution_lock();
    if (!execution)
        return;
    struct stream_row *row = stream_of(execution, stream);
    if (row) {
        row->flags |= STREAM_CLOSING;
        execution_catch_up(execution);
        collect(execution, row->lane);
    }
    execution_unlock(execution);
}

/* --- waiting -------------------------------------------------------------------------------------------- */

/* Called with the lock held, and leaves it held; lets go meanwhile. */
static void await(struct execution *execution, struct awaited awaited)
{
    execution_catch_up(execution);
    while (!clock_reached(execution, &awaited)) {
        if (execution->virtual_clock) {
            clock_await(execution, &awaited);
        } else { /* it cannot be done sooner, but later if others take turns */
            uint64_t least_ns =
                awaited.stream ? engine_least_ns(execution, awaited.stream - 1, awaited.target) : 0;
            execution_unlock(execution);
            clock_real_sleep(least_ns);
            if (execution_lock() != execution)
                return;
        }
        execution_catch_up(execution);
    }
}

static uint64_t push_item(uint32_t stream, struct item item, unsigned depth)
{
    struct execution *execution = execution_lock();
    if (!execution)
        return 0;
    struct stream_row *row = stream_of(execution, stream);
    uint64_t pushed = 0;
    if (row) {
        depth = depth < 1 ? 1 : depth > RING ? RING : depth;
        /* Go on when some room is there, as drivers do, and no other thread took it. */
        while (row->tail - row->head >= depth)
            await(execution,
                  (struct awaited){.stream = stream, .target = row->tail - depth + 1 + depth / 16});
        struct lane_row *lane = &execution->lanes[row->lane];
        item.arrival_ns = execution->virtual_clock ? clock_local_ns(execution) : clock_real_ns();
        item.order = lane->order++;
        if (item.meeting.number)
            item.turn = execution->met[item.meeting.number - 1].pushed[lane->gpu]++;
        if (!execution->virtual_clock && !lane->pending)
            execution_catch_up(execution); /* before anything is there that could be thought to have run */
        row->ring[row->tail % RING] = item;
        pushed = ++row->tail;
        lane->pending++;
    }
    execution_unlock(execution);
    return pushed;
}

uint64_t execution_push(uint32_t stream, uint64_t ns, struct meeting meeting, unsigned depth)
{
    return push_item(stream, (struct item){.kind = ITEM_KERNEL, .work = ns << WORK_SHIFT, .meeting = meeting},
                     depth);
}

uint64_t execution_pushed(uint32_t stream)
{
    struct execution *execution = execution_lock();
    if (!execution)
        return 0;
    const struct stream_row *row = stream_of(execution, stream);
    uint64_t pushed = row ? row->tail : 0;
    execution_unlock(execution);
    return pushed;
}

/* How far the stream has come, and would come. False: it is none. */
static bool reached(uint32_t stream, uint64_t *done, uint64_t *pushed)
{
    struct execution *execution = execution_lock();
    if (!execution)
        return false;
    if (execution->virtual_clock)
        clock_settle(execution);
    execution_catch_up(execution);
    const struct stream_row *row = stream_of(execution, stream);
    if (row) {
        *done = row->head;
        *pushed = row->tail;
    }
    execution_unlock(execution);
    return row != NULL;
}

bool execution_done(uint32_t stream, uint64_t target)
{
    uint64_t done, pushed;
    return !reached(stream, &done, &pushed) || done >= target;
}

uint64_t execution_unfinished(uint32_t stream)
{
    uint64_t done, pushed;
    return reached(stream, &done, &pushed) && done < pushed ? pushed : 0;
}

void execution_wait(uint32_t stream, uint64_t target)
{
    struct execution *execution = execution_lock();
    if (!execution)
        return;
    if (stream_of(execution, stream))
        await(execution, (struct awaited){.stream = stream, .target = target});
    execution_unlock(execution);
}

void execution_wait_all(const char *uuid, uint64_t context)
{
    struct execution *execution = execution_lock();
    if (!execution)
        return;
    uint32_t lane = execution_lane(execution, uuid, context, false);
    uint32_t streams[MAX_STREAMS];
    uint64_t targets[MAX_STREAMS];
    size_t count = 0;
    for (uint32_t i = lane == NOTHING ? NOTHING : execution->lanes[lane].streams;
         i < MAX_STREAMS && count < MAX_STREAMS; i = execution->streams[i].next) {
        streams[count] = i + 1;
        targets[count++] = execution->streams[i].tail;
    }
    for (size_t i = 0; i < count; i++)
        if (stream_of(execution, streams[i]))
            await(execution, (struct awaited){.stream = streams[i], .target = targets[i]});
    execution_unlock(execution);
}

/* --- events --------------------------------------------------------------------------------------------- */

uint32_t execution_event(const char *uuid, uint64_t context)
{
    struct execution *execution = execution_lock();
    if (!execution)
        return 0;
    static uint32_t hint;
    uint32_t lane = execution_lane(execution, uuid, context, true);
    uint32_t event = 0;
    for (uint32_t i = 0; lane != NOTHING && !event && i < MAX_STREAM_EVENTS; i++) {
        uint32_t place = (hint + i) % MAX_STREAM_EVENTS;
        if (execution->events[place].owner)
            continue;
        /* who still waits for what stood here before need not */
        execution->events[place] = (struct event_row){.owner = lane + 1, .done_turn = execution->event_turns};
        if (execution->event_high <= place)
            execution->event_high = place + 1;
        hint = place + 1;
        event = place + 1;
    }
    execution_unlock(execution);
    return event;
}

static struct event_row *event_of(struct execution *execution, uint32_t event)
{
    if (!event || event > MAX_STREAM_EVENTS)
        return NULL;
    struct event_row *row = &execution->events[event - 1];
    return row->owner && execution_owns(execution, row->owner - 1) ? row : NULL;
}

void execution_event_free(uint32_t event)
{
    struct execution *execution = execution_lock();
    if (!execution)
        return;
    struct event_row *row = event_of(execution, event);
    if (row) /* who still waits for it waits no longer */
        *row = (struct event_row){.done_turn = UINT64_MAX};
    execution_unlock(execution);
}

uint64_t execution_record(uint32_t stream, uint32_t event, uint64_t ns, unsigned depth, uint64_t *pushed)
{
    struct execution *execution = execution_lock();
    if (!execution)
        return 0;
    uint64_t turn = event_of(execution, event) ? ++execution->event_turns : 0;
    execution_unlock(execution);
    if (turn)
        *pushed = push_item(
            stream,
            (struct item){.kind = ITEM_EVENT, .work = ns << WORK_SHIFT, .event = event - 1, .turn = turn},
            depth);
    return turn && *pushed ? turn : 0;
}

void execution_await(uint32_t stream, uint32_t event, uint64_t turn, unsigned depth)
{
    if (event && turn)
        push_item(stream, (struct item){.kind = ITEM_WAIT, .event = event - 1, .turn = turn}, depth);
}

bool execution_event_done(uint32_t event, uint64_t turn, uint64_t *done_ns)
{
    struct execution *execution = execution_lock();
    if (!execution)
        return true;
    if (execution->virtual_clock)
        clock_settle(execution);
    execution_catch_up(execution);
    const struct event_row *row = event_of(execution, event);
    bool done = !row || row->done_turn >= turn;
    if (done_ns)
        *done_ns = row ? row->done_ns : 0;
    execution_unlock(execution);
    return done;
}

void execution_event_wait(uint32_t event, uint64_t turn)
{
    struct execution *execution = execution_lock();
    if (!execution)
        return;
    if (event_of(execution, event))
        await(execution, (struct awaited){.event = event, .target = turn});
    execution_unlock(execution);
}
