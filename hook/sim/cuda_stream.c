/* Simulated CUDA driver: streams. The NULL stream, CU_STREAM_LEGACY and CU_STREAM_PER_THREAD are streams like
 * others here, made when first used.
 */
#include "captures.h"
#include "execution.h"
#include "graph_memory.h"
#include "pools.h"

#include <pthread.h>
#include <stdlib.h>

enum { GREATEST_PRIORITY = -5 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct CUstream_st legacy[MAX_GPUS]; /* of primary contexts */
static _Thread_local struct CUstream_st *per_thread_streams; /* freed with the process */

static struct CUstream_st *created; /* and legacy streams of other contexts */

/* No stream survives fork. */
static void forget_after_fork(void)
{
    pthread_mutex_init(&lock, NULL);
    created = NULL;
}

static __attribute__((constructor)) void watch_forks(void)
{
    pthread_atfork(NULL, NULL, forget_after_fork);
}

static struct CUstream_st *make_default(struct CUstream_st **list, CUcontext context, unsigned flags)
{
    struct CUstream_st *fresh = calloc(1, sizeof *fresh);
    if (fresh) {
        fresh->device = context->device;
        fresh->context = context;
        fresh->number = context_number(context);
        fresh->flags = flags;
        fresh->next = *list;
        *list = fresh;
    }
    return fresh;
}

static struct CUstream_st *own_stream(CUcontext context)
{
    struct CUstream_st *stream = per_thread_streams;
    while (stream && (stream->device != context->device || stream->number != context_number(context)))
        stream = stream->next;
    return stream ? stream : make_default(&per_thread_streams, context, 0);
}

static struct CUstream_st *legacy_stream(CUcontext context)
{
    bool primary = context_number(context) == 0;
    struct CUstream_st *stream = &legacy[context->device];
    if (primary && atomic_load_explicit(&stream->known, memory_order_acquire))
        return stream;
    pthread_mutex_lock(&lock);
    if (primary) {
        stream->device = context->device;
        stream->context = context;
        stream->flags = STREAM_LEGACY;
        atomic_store_explicit(&stream->known, true, memory_order_release);
    } else {
        for (stream = created; stream && (stream->context != context || stream->flags != STREAM_LEGACY);)
            stream = stream->next;
        stream = stream ? stream : make_default(&created, context, STREAM_LEGACY);
    }
    pthread_mutex_unlock(&lock);
    return stream;
}

static struct CUstream_st *special_stream(CUstream handle, bool per_thread, CUcontext context)
{
    bool own = (uintptr_t)handle == 2 || (per_thread && !handle);
    return own ? own_stream(context) : legacy_stream(context);
}

CUresult stream_begin(struct stream_call *call, const char *function, CUstream handle, bool per_thread)
{
    CUresult result = cuda_begin_context(&call->call, function);
    call->stream = NULL;
    if (result != CUDA_SUCCESS)
        return result;
    if (handle && (uintptr_t)handle > 2) {
        if (handle->mark != STREAM_MARK)
            sim_used_after_its_end(function);
        call->stream = handle;
        return CUDA_SUCCESS;
    }
    call->stream = special_stream(handle, per_thread, current_context());
    return call->stream ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

uint32_t stream_row(struct stream_call *call)
{
    struct CUstream_st *stream = call->stream;
    uint32_t row = atomic_load(&stream->row);
    if (row)
        return row;
    pthread_mutex_lock(&lock);
    if (!atomic_load(&stream->row))
        atomic_store(&stream->row,
                     execution_stream(device_uuid(stream->device), stream->number, stream->flags));
    row = atomic_load(&stream->row);
    pthread_mutex_unlock(&lock);
    return row;
}

uint64_t stream_push(struct stream_call *call, uint64_t ns, struct meeting meeting)
{
    return execution_push(stream_row(call), ns, meeting, call->call.node->queue_depth);
}

/* Priorities count down; what is out of the range is taken to be at its end. */
static unsigned urgency(int priority)
{
    return priority < GREATEST_PRIORITY ? -GREATEST_PRIORITY : priority > 0 ? 0 : (unsigned)-priority;
}

static CUresult create(const char *function, CUstream *stream, unsigned flags, int priority)
{
    struct cuda_call call;
    CUresult result = cuda_begin_context(&call, function);
    if (result == CUDA_SUCCESS && (!stream || flags > STREAM_CREATED_NON_BLOCKING))
        result = CUDA_ERROR_INVALID_VALUE;
    struct CUstream_st *fresh = result == CUDA_SUCCESS ? calloc(1, sizeof *fresh) : NULL;
    if (result == CUDA_SUCCESS && !fresh)
        result = CUDA_ERROR_OUT_OF_MEMORY;
    if (result == CUDA_SUCCESS) {
        fresh->context = current_context();
        fresh->device = fresh->context->device;
        fresh->number = context_number(fresh->context);
        fresh->flags = flags & STREAM_CREATED_NON_BLOCKING ? STREAM_NON_BLOCKING : 0;
        fresh->priority = priority;
        fresh->mark = STREAM_MARK;
        fresh->flags |= urgency(priority) << STREAM_PRIORITY_SHIFT;
        pthread_mutex_lock(&lock);
        fresh->next = created;
        created = fresh;
        pthread_mutex_unlock(&lock);
        *stream = fresh;
    }
    return cuda_end(&call, result);
}

EXPORT CUresult cuStreamCreate(CUstream *stream, unsigned flags)
{
    return create(__func__, stream, flags, 0);
}

EXPORT CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned flags, int priority)
{
    return create(__func__, stream, flags, priority);
}

EXPORT CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest)
{
    struct cuda_call call;
    CUresult result = cuda_begin_context(&call, __func__);
    if (result == CUDA_SUCCESS && least)
        *least = 0;
    if (result == CUDA_SUCCESS && greatest)
        *greatest = GREATEST_PRIORITY;
    return cuda_end(&call, result);
}

/* Called with the lock held. */
static void end_stream(struct CUstream_st **link)
{
    struct CUstream_st *stream = *link;
    *link = stream->next;
    capture_drop_stream(stream);
    if (stream->row)
        execution_close(stream->row);
    stream->mark = 0;
    free(stream);
}

void sim_streams_end_context(CUcontext context)
{
    pthread_mutex_lock(&lock);
    for (struct CUstream_st **link = &created; *link;)
        if ((*link)->context == context)
            end_stream(link);
        else
            link = &(*link)->next;
    pthread_mutex_unlock(&lock);
}

static CUresult destroy(const char *function, CUstream stream)
{
    struct cuda_call call;
    CUresult result = cuda_begin(&call, function);
    if (result == CUDA_SUCCESS && (uintptr_t)stream <= 2)
        result = CUDA_ERROR_INVALID_HANDLE;
    if (result == CUDA_SUCCESS) {
        pthread_mutex_lock(&lock);
        struct CUstream_st **link = &created;
        while (*link && *link != stream)
            link = &(*link)->next;
        if (!*link)
            sim_used_after_its_end(function);
        end_stream(link);
        pthread_mutex_unlock(&lock);
    }
    return cuda_end(&call, result);
}

EXPORT CUresult cuStreamDestroy(CUstream stream)
{
    return destroy(__func__, stream);
}

EXPORT CUresult cuStreamDestroy_v2(CUstream stream)
{
    return destroy(__func__, stream);
}

EXPORT CUresult cuStreamGetCtx(CUstream stream, CUcontext *context)
{
    struct stream_call call;
    CUresult result = stream_begin(&call, __func__, stream, false);
    if (result == CUDA_SUCCESS && !context)
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        *context = (uintptr_t)stream > 2 ? stream->context : current_context();
    return cuda_end(&call.call, result);
}

CUresult sim_stream_device(CUstream stream, CUdevice *device)
{
    CUcontext context = current_context();
    if ((uintptr_t)stream > 2)
        *device = stream->device;
    else if (context)
        *device = context->device;
    else
        return CUDA_ERROR_INVALID_CONTEXT;
    return CUDA_SUCCESS;
}

uint32_t sim_stream_row(CUstream stream, bool per_thread)
{
    CUcontext context = current_context();
    if ((uintptr_t)stream <= 2)
        stream = context ? special_stream(stream, per_thread, context) : NULL;
    return stream ? atomic_load(&stream->row) : 0;
}

/* --- waiting -------------------------------------------------------------------------------------------- */

static CUresult synchronize(const char *function, CUstream stream, bool per_thread)
{
    struct stream_call call;
    CUresult result = stream_begin(&call, function, stream, per_thread);
    if (result == CUDA_SUCCESS)
        result = capture_look(call.stream);
    uint32_t row = result == CUDA_SUCCESS ? call.stream->row : 0;
    result = cuda_end(&call.call, result);
    if (row)
        execution_wait(row, execution_pushed(row));
    if (result == CUDA_SUCCESS)
        sim_pools_synchronised();
    return result;
}

EXPORT CUresult cuStreamSynchronize(CUstream stream)
{
    return synchronize(__func__, stream, false);
}

EXPORT CUresult cuStreamSynchronize_ptsz(CUstream stream)
{
    return synchronize(__func__, stream, true);
}

static CUresult query(const char *function, CUstream stream, bool per_thread)
{
    struct stream_call call;
    CUresult result = stream_begin(&call, function, stream, per_thread);
    if (result == CUDA_SUCCESS)
        result = capture_look(call.stream);
    uint32_t row = result == CUDA_SUCCESS ? call.stream->row : 0;
    if (row && !execution_done(row, execution_pushed(row)))
        result = CUDA_ERROR_NOT_READY;
    return cuda_end(&call.call, result);
}

EXPORT CUresult cuStreamQuery(CUstream stream)
{
    return query(__func__, stream, false);
}

EXPORT CUresult cuStreamQuery_ptsz(CUstream stream)
{
    return query(__func__, stream, true);
}

static CUresult synchronize_context(const char *function, CUcontext context)
{
    struct cuda_call call;
    CUresult result = cuda_begin_context(&call, function);
    if (result == CUDA_SUCCESS)
        result = capture_look(NULL);
    context = result != CUDA_SUCCESS || context ? context : current_context();
    result = cuda_end(&call, result);
    if (result == CUDA_SUCCESS) {
        execution_wait_all(device_uuid(context->device), context_number(context));
        sim_pools_synchronised();
    }
    return result;
}

EXPORT CUresult cuCtxSynchronize(void)
{
    return synchronize_context(__func__, NULL);
}

EXPORT CUresult cuCtxSynchronize_v2(CUcontext context)
{
    return synchronize_context(__func__, context);
}
