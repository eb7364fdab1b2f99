/* Simulated CUDA driver: events. They happen on the GPU, in their stream's order, and so only while the
 * process has the GPU.
 */
#include "captures.h"
#include "clock.h"
#include "execution.h"
#include "pools.h"

#include <pthread.h>
#include <stdlib.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct CUevent_st *created;

/* No event survives fork. */
static void forget_after_fork(void)
{
    pthread_mutex_init(&lock, NULL);
    created = NULL;
}

static __attribute__((constructor)) void watch_forks(void)
{
    pthread_atfork(NULL, NULL, forget_after_fork);
}

/* Called with the lock held. */
static void end_event(struct CUevent_st **link)
{
    struct CUevent_st *event = *link;
    *link = event->next;
    capture_drop_event(event);
    execution_event_free(event->row);
    event->mark = 0;
    free(event);
}

void sim_events_end_context(CUcontext context)
{
    pthread_mutex_lock(&lock);
    for (struct CUevent_st **link = &created; *link;)
        if ((*link)->context == context)
            end_event(link);
        else
            link = &(*link)->next;
    pthread_mutex_unlock(&lock);
}

unsigned sim_event_count(void)
{
    unsigned count = 0;
    pthread_mutex_lock(&lock);
    for (const struct CUevent_st *event = created; event; event = event->next)
        count++;
    pthread_mutex_unlock(&lock);
    return count;
}

static CUresult alive(const char *function, const struct CUevent_st *event)
{
    if (event && event->mark != EVENT_MARK)
        sim_used_after_its_end(function);
    return event ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

EXPORT CUresult cuEventCreate(CUevent *event, unsigned flags)
{
    struct cuda_call call;
    CUresult result = cuda_begin_context(&call, __func__);
    if (result == CUDA_SUCCESS && (!event || flags > 7))
        result = CUDA_ERROR_INVALID_VALUE;
    struct CUevent_st *fresh = result == CUDA_SUCCESS ? calloc(1, sizeof *fresh) : NULL;
    if (result == CUDA_SUCCESS && !fresh)
        result = CUDA_ERROR_OUT_OF_MEMORY;
    if (fresh) {
        fresh->context = whole_context(current_context());
        fresh->device = fresh->context->device;
        fresh->timed = !(flags & EVENT_WITHOUT_TIME);
        fresh->row = execution_event(call.gpu->uuid, context_number(fresh->context));
        result = fresh->row ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (result == CUDA_SUCCESS) {
        fresh->mark = EVENT_MARK;
        pthread_mutex_lock(&lock);
        fresh->next = created;
        created = fresh;
        pthread_mutex_unlock(&lock);
        *event = fresh;
    } else {
        free(fresh);
    }
    return cuda_end(&call, result);
}

EXPORT CUresult cuEventDestroy_v2(CUevent event)
{
    struct cuda_call call;
    CUresult result = cuda_begin(&call, __func__);
    if (result == CUDA_SUCCESS)
        result = alive(__func__, event);
    if (result == CUDA_SUCCESS) {
        pthread_mutex_lock(&lock);
        struct CUevent_st **link = &created;
        while (*link && *link != event)
            link = &(*link)->next;
        if (*link)
            end_event(link);
        pthread_mutex_unlock(&lock);
    }
    return cuda_end(&call, result);
}

static CUresult record(const char *function, CUevent event, CUstream stream, bool per_thread)
{
    struct stream_call call;
    CUresult result = stream_begin(&call, function, stream, per_thread);
    bool capturing = false;
    if (result == CUDA_SUCCESS)
        result = alive(function, event);
    if (result == CUDA_SUCCESS
        && whole_context((uintptr_t)stream > 2 ? stream->context : current_context()) != event->context)
        result = CUDA_ERROR_INVALID_HANDLE;
    if (result == CUDA_SUCCESS)
        result = capture_record(event, call.stream, &capturing);
    if (result == CUDA_SUCCESS)
        clock_spend(500ULL * call.call.node->launch_us); /* half of what a launch costs */
    if (result == CUDA_SUCCESS && !capturing) {
        uint32_t row = stream_row(&call);
        uint64_t pushed = 0;
        uint64_t turn = execution_record(row, event->row, event->timed ? call.call.node->event_ns : 0,
                                         call.call.node->queue_depth, &pushed);
        event->stream = row;
        event->pushed = pushed;
        event->turn = turn;
        result = turn ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    }
    return cuda_end(&call.call, result);
}

EXPORT CUresult cuEventRecord(CUevent event, CUstream stream)
{
    return record(__func__, event, stream, false);
}

EXPORT CUresult cuEventRecord_ptsz(CUevent event, CUstream stream)
{
    return record(__func__, event, stream, true);
}

static CUresult begin_event(struct cuda_call *call, const char *function, CUevent event)
{
    CUresult result = cuda_begin(call, function);
    if (result == CUDA_SUCCESS)
        result = alive(function, event);
    return result == CUDA_SUCCESS ? capture_look_event(event) : result;
}

EXPORT CUresult cuEventQuery(CUevent event)
{
    struct cuda_call call;
    CUresult result = begin_event(&call, __func__, event);
    if (result == CUDA_SUCCESS)
        clock_spend(250ULL * call.node->launch_us);
    if (result == CUDA_SUCCESS && event->turn && !execution_event_done(event->row, event->turn, NULL))
        result = CUDA_ERROR_NOT_READY;
    return cuda_end(&call, result);
}

EXPORT CUresult cuEventSynchronize(CUevent event)
{
    struct cuda_call call;
    CUresult result = cuda_end(&call, begin_event(&call, __func__, event));
    if (result == CUDA_SUCCESS && event->turn) {
        execution_wait(event->stream, event->pushed); /* which is foreseeable, if the stream is still there */
        execution_event_wait(event->row, event->turn);
    }
    if (result == CUDA_SUCCESS)
        sim_pools_synchronised();
    return result;
}

/* When that was, as the driver tells it. */
static int64_t told_ns(uint64_t ns, const struct sim_node *node)
{
    return (int64_t)(node->event_step_ns ? ns - ns % node->event_step_ns : ns);
}

EXPORT CUresult cuEventElapsedTime(float *milliseconds, CUevent start, CUevent end)
{
    struct cuda_call call;
    CUresult result = cuda_begin(&call, __func__);
    uint64_t from_ns = 0, to_ns = 0;
    if (result == CUDA_SUCCESS && !milliseconds)
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        result = alive(__func__, start);
    if (result == CUDA_SUCCESS)
        result = alive(__func__, end);
    if (result == CUDA_SUCCESS && start->context != end->context)
        result = CUDA_ERROR_INVALID_HANDLE;
    if (result == CUDA_SUCCESS && (!start->timed || !end->timed || !start->turn || !end->turn))
        result = CUDA_ERROR_INVALID_HANDLE;
    if (result == CUDA_SUCCESS && (start->capture || end->capture))
        result = CUDA_ERROR_CAPTURED_EVENT;
    if (result == CUDA_SUCCESS
        && (!execution_event_done(start->row, start->turn, &from_ns)
            || !execution_event_done(end->row, end->turn, &to_ns)))
        result = CUDA_ERROR_NOT_READY;
    if (result == CUDA_SUCCESS)
        *milliseconds = (float)((double)(told_ns(to_ns, call.node) - told_ns(from_ns, call.node)) / 1e6
                                * (1 + call.node->drift_ppm / 1e6));
    return cuda_end(&call, result);
}

static CUresult await(const char *function, CUstream stream, CUevent event, bool per_thread)
{
    struct stream_call call;
    CUresult result = stream_begin(&call, function, stream, per_thread);
    bool capturing = false;
    if (result == CUDA_SUCCESS)
        result = alive(function, event);
    if (result == CUDA_SUCCESS)
        result = capture_await(call.stream, event, &capturing);
    if (result == CUDA_SUCCESS && !capturing && event->turn)
        execution_await(stream_row(&call), event->row, event->turn, call.call.node->queue_depth);
    return cuda_end(&call.call, result);
}

EXPORT CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags)
{
    (void)flags;
    return await(__func__, stream, event, false);
}

EXPORT CUresult cuStreamWaitEvent_ptsz(CUstream stream, CUevent event, unsigned flags)
{
    (void)flags;
    return await(__func__, stream, event, true);
}
