#include "captures.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

struct capture {
    struct capture *next;
    uint64_t id;
    CUstreamCaptureMode mode;
    pthread_t thread;
    struct CUstream_st *origin;
    CUgraph graph;
    bool invalid, over, borrowed; /* borrowed: into a graph that was there */
    bool again;
    size_t recaptured; /* nodes */
    unsigned references; /* of events, and one while it is going on */
    struct CUstream_st **streams;
    size_t stream_count;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct capture *ongoing;
static _Atomic unsigned ongoing_count; /* so that nothing is locked while there is none */
static uint64_t captures_begun;
static _Thread_local CUstreamCaptureMode thread_mode = CAPTURE_MODE_GLOBAL;

/* --- bookkeeping, called with the lock held ------------------------------------------------------------- */

static void let_go(struct capture *capture)
{
    if (capture && --capture->references == 0) {
        free(capture->streams);
        free(capture);
    }
}

static CUresult disturb(struct capture *capture, CUresult why)
{
    if (capture->invalid)
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    capture->invalid = true;
    return why;
}

static bool set_tips(struct CUgraphNode_st ***tips, size_t *count, struct CUgraphNode_st *const *from,
                     size_t from_count)
{
    struct CUgraphNode_st **fresh = calloc(from_count + 1, sizeof *fresh);
    if (!fresh)
        return false;
    if (from_count)
        memcpy(fresh, from, from_count * sizeof *fresh);
    free(*tips);
    *tips = fresh;
    *count = from_count;
    return true;
}

static bool enlist(struct capture *capture, struct CUstream_st *stream)
{
    void *grown = realloc(capture->streams, (capture->stream_count + 1) * sizeof *capture->streams);
    if (!grown)
        return false;
    capture->streams = grown;
    capture->streams[capture->stream_count++] = stream;
    stream->capture = capture;
    return true;
}

/* The legacy stream would have to wait for a stream that is being captured. */
static struct capture *captured_before_legacy(const struct CUstream_st *stream)
{
    if (!(stream->flags & STREAM_LEGACY))
        return NULL;
    for (struct capture *capture = ongoing; capture; capture = capture->next)
        for (size_t i = 0; i < capture->stream_count; i++)
            if (capture->streams[i]->device == stream->device
                && !(capture->streams[i]->flags & STREAM_NON_BLOCKING))
                return capture;
    return NULL;
}

static CUresult unsafe(void)
{
    CUresult result = CUDA_SUCCESS;
    for (struct capture *capture = ongoing; capture && thread_mode != CAPTURE_MODE_RELAXED;
         capture = capture->next) {
        bool own = pthread_equal(capture->thread, pthread_self());
        if (own ? capture->mode != CAPTURE_MODE_RELAXED
                : capture->mode == CAPTURE_MODE_GLOBAL && thread_mode == CAPTURE_MODE_GLOBAL)
            result = disturb(capture, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    }
    return result;
}

/* --- what calls ask before they do anything ------------------------------------------------------------- */

CUresult capture_work(struct CUstream_st *stream, bool *capturing)
{
    *capturing = false;
    if (!atomic_load(&ongoing_count))
        return CUDA_SUCCESS;
    CUresult result = CUDA_SUCCESS;
    pthread_mutex_lock(&lock);
    struct capture *capture = stream->capture, *implied = captured_before_legacy(stream);
    if (capture && capture->invalid)
        result = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    else if (implied)
        result = disturb(implied, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    *capturing = capture && result == CUDA_SUCCESS;
    pthread_mutex_unlock(&lock);
    return result;
}

CUresult capture_look(struct CUstream_st *stream)
{
    if (!atomic_load(&ongoing_count))
        return CUDA_SUCCESS;
    CUresult result = CUDA_SUCCESS;
    pthread_mutex_lock(&lock);
    struct capture *implied = stream ? captured_before_legacy(stream) : NULL;
    if (stream && stream->capture)
        result = disturb(stream->capture, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    else if (implied)
        result = disturb(implied, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    else
        result = unsafe();
    for (struct capture *capture = ongoing; capture && !stream; capture = capture->next) {
        CUresult disturbed = disturb(capture, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
        result = result == CUDA_SUCCESS ? disturbed : result;
    }
    pthread_mutex_unlock(&lock);
    return result;
}

CUresult capture_look_event(struct CUevent_st *event)
{
    if (!event->capture && !atomic_load(&ongoing_count))
        return CUDA_SUCCESS;
    pthread_mutex_lock(&lock);
    struct capture *capture = event->capture;
    if (capture && !capture->over)
        capture->invalid = true;
    CUresult result = capture ? CUDA_ERROR_CAPTURED_EVENT : unsafe();
    pthread_mutex_unlock(&lock);
    return result;
}

/* What works at once instead of in a stream, and so would be missing from the graph. */
static bool works_at_once(const char *function)
{
    static const char *const beginnings[] = {
        "cuMemAlloc",   "cuMemFree",       "cuMemHost",       "cuMemCreate",     "cuArray",
        "cuModuleLoad", "cuModuleUnload",  "cuLibraryLoad",   "cuLibraryUnload", "cuMipmappedArray",
        "cuCtxCreate",  "cuMemcpyHtoD_v2", "cuMemcpyDtoH_v2", "cuMemsetD8_v2",   "cuMemPoolTrimTo"};
    for (size_t i = 0; i < sizeof beginnings / sizeof *beginnings; i++)
        if (strncmp(function, beginnings[i], strlen(beginnings[i])) == 0)
            return !strstr(function, "Async") && !strstr(function, "Descriptor");
    return false;
}

CUresult capture_unsafe(const char *function)
{
    if (!atomic_load(&ongoing_count) || !works_at_once(function))
        return CUDA_SUCCESS;
    pthread_mutex_lock(&lock);
    CUresult result = unsafe();
    pthread_mutex_unlock(&lock);
    return result;
}

/* --- what becomes part of a capture --------------------------------------------------------------------- */

CUresult capture_node(struct CUstream_st *stream, struct node_content content, struct CUgraphNode_st **node)
{
    pthread_mutex_lock(&lock);
    struct capture *capture = stream->capture;
    CUresult result = capture && !capture->invalid ? CUDA_SUCCESS : CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    struct CUgraphNode_st *fresh = NULL;
    if (result == CUDA_SUCCESS && capture->again) {
        fresh =
            graph_recapture(capture->graph, capture->recaptured++, content, stream->tips, stream->tip_count);
        result = fresh ? CUDA_SUCCESS : disturb(capture, CUDA_ERROR_GRAPH_RECAPTURE_FAILURE);
    } else if (result == CUDA_SUCCESS) {
        fresh = graph_add(capture->graph, content, stream->tips, stream->tip_count);
    }
    if (result == CUDA_SUCCESS && !(fresh && set_tips(&stream->tips, &stream->tip_count, &fresh, 1)))
        result = CUDA_ERROR_OUT_OF_MEMORY;
    pthread_mutex_unlock(&lock);
    if (node)
        *node = fresh;
    return result;
}

CUresult capture_record(struct CUevent_st *event, struct CUstream_st *stream, bool *capturing)
{
    CUresult result = capture_work(stream, capturing);
    if (result != CUDA_SUCCESS || (!*capturing && !event->capture))
        return result;
    pthread_mutex_lock(&lock);
    struct capture *before = event->capture;
    event->capture = *capturing ? stream->capture : NULL;
    if (event->capture)
        ((struct capture *)event->capture)->references++;
    if (!set_tips(&event->tips, &event->tip_count, stream->tips, *capturing ? stream->tip_count : 0))
        result = CUDA_ERROR_OUT_OF_MEMORY;
    let_go(before);
    pthread_mutex_unlock(&lock);
    return result;
}

/* The stream's next node depends on the event's, too. */
static CUresult join(struct CUstream_st *stream, const struct CUevent_st *event)
{
    size_t count = stream->tip_count + event->tip_count;
    struct CUgraphNode_st **tips = calloc(count + 1, sizeof *tips);
    if (!tips)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (stream->tip_count)
        memcpy(tips, stream->tips, stream->tip_count * sizeof *tips);
    if (event->tip_count)
        memcpy(tips + stream->tip_count, event->tips, event->tip_count * sizeof *tips);
    free(stream->tips);
    stream->tips = tips;
    stream->tip_count = count;
    return CUDA_SUCCESS;
}

CUresult capture_await(struct CUstream_st *stream, struct CUevent_st *event, bool *capturing)
{
    CUresult result = capture_work(stream, capturing);
    if (result != CUDA_SUCCESS || (!*capturing && !event->capture))
        return result;
    pthread_mutex_lock(&lock);
    struct capture *mine = stream->capture, *other = event->capture;
    if (other && other->over)
        result = CUDA_ERROR_CAPTURED_EVENT;
    else if (other && other->invalid)
        result = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    else if (mine && !other)
        result = disturb(mine, CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
    else if (mine && mine != other)
        result = disturb(mine, disturb(other, CUDA_ERROR_STREAM_CAPTURE_MERGE));
    else if (!mine && stream->flags & STREAM_LEGACY)
        result = disturb(other, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    else if (!mine && !enlist(other, stream))
        result = CUDA_ERROR_OUT_OF_MEMORY;
    if (result == CUDA_SUCCESS)
        result = join(stream, event);
    *capturing = result == CUDA_SUCCESS;
    pthread_mutex_unlock(&lock);
    return result;
}

void capture_drop_stream(struct CUstream_st *stream)
{
    pthread_mutex_lock(&lock);
    struct capture *capture = stream->capture;
    if (capture) {
        capture->invalid = true;
        for (size_t i = 0; i < capture->stream_count; i++)
            if (capture->streams[i] == stream)
                capture->streams[i--] = capture->streams[--capture->stream_count];
        if (capture->origin == stream)
            capture->origin = NULL;
    }
    free(stream->tips);
    pthread_mutex_unlock(&lock);
}

void capture_drop_event(struct CUevent_st *event)
{
    pthread_mutex_lock(&lock);
    let_go(event->capture);
    free(event->tips);
    pthread_mutex_unlock(&lock);
}

/* --- beginning and ending ------------------------------------------------------------------------------- */

static CUresult start(struct CUstream_st *stream, CUstreamCaptureMode mode, struct capture_destination into)
{
    struct capture *capture = calloc(1, sizeof *capture);
    CUgraph graph = into.graph ? into.graph : capture ? graph_new() : NULL;
    if (!capture || !graph || !set_tips(&stream->tips, &stream->tip_count, into.nodes, into.count)
        || !enlist(capture, stream)) {
        if (!into.graph)
            free(graph);
        free(capture);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    capture->id = ++captures_begun;
    capture->mode = mode;
    capture->thread = pthread_self();
    capture->origin = stream;
    capture->graph = graph;
    capture->borrowed = into.graph;
    capture->again = into.again;
    capture->references = 1;
    capture->next = ongoing;
    ongoing = capture;
    atomic_fetch_add(&ongoing_count, 1);
    return CUDA_SUCCESS;
}

CUresult capture_begin(struct CUstream_st *stream, CUstreamCaptureMode mode, struct capture_destination into)
{
    pthread_mutex_lock(&lock);
    CUresult result = stream->capture ? CUDA_ERROR_ILLEGAL_STATE : start(stream, mode, into);
    pthread_mutex_unlock(&lock);
    return result;
}

static bool joined(const struct capture *capture)
{
    for (size_t i = 0; i < capture->stream_count; i++) {
        const struct CUstream_st *stream = capture->streams[i];
        for (size_t j = 0; stream != capture->origin && j < stream->tip_count; j++)
            if (!graph_precedes(capture->graph, stream->tips[j], capture->origin->tips,
                                capture->origin->tip_count))
                return false;
    }
    return true;
}

static CUresult finish(struct CUstream_st *stream, CUgraph *graph)
{
    struct capture *capture = stream->capture;
    if (!capture)
        return CUDA_ERROR_ILLEGAL_STATE;
    if (capture->origin != stream)
        return disturb(capture, CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
    if (capture->mode != CAPTURE_MODE_RELAXED && !pthread_equal(capture->thread, pthread_self()))
        return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
    bool short_of = capture->again && capture->recaptured < capture->graph->count;
    CUresult result = capture->invalid ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
        : !joined(capture)             ? CUDA_ERROR_STREAM_CAPTURE_UNJOINED
        : short_of                     ? CUDA_ERROR_GRAPH_RECAPTURE_FAILURE
                                       : CUDA_SUCCESS;
    for (size_t i = 0; i < capture->stream_count; i++) {
        capture->streams[i]->capture = NULL;
        capture->streams[i]->tip_count = 0;
    }
    capture->stream_count = 0;
    if (result != CUDA_SUCCESS && !capture->borrowed)
        graph_delete(capture->graph);
    *graph = result == CUDA_SUCCESS ? capture->graph : NULL;
    capture->over = true;
    struct capture **link = &ongoing;
    while (*link != capture)
        link = &(*link)->next;
    *link = capture->next;
    atomic_fetch_sub(&ongoing_count, 1);
    let_go(capture);
    return result;
}

CUresult capture_end(struct CUstream_st *stream, CUgraph *graph)
{
    pthread_mutex_lock(&lock);
    CUresult result = finish(stream, graph);
    pthread_mutex_unlock(&lock);
    return result;
}

CUstreamCaptureMode capture_thread_mode(CUstreamCaptureMode mode)
{
    CUstreamCaptureMode before = thread_mode;
    thread_mode = mode;
    return before;
}

CUresult capture_ask(struct CUstream_st *stream, struct capture_info *info)
{
    CUresult result = CUDA_SUCCESS;
    *info = (struct capture_info){.status = CAPTURE_NONE};
    if (!atomic_load(&ongoing_count))
        return CUDA_SUCCESS;
    pthread_mutex_lock(&lock);
    const struct capture *capture = stream->capture;
    if (captured_before_legacy(stream))
        result = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT; /* without disturbing it, by the reference */
    else if (capture)
        *info = (struct capture_info){.status = capture->invalid ? CAPTURE_INVALIDATED : CAPTURE_ACTIVE,
                                      .id = capture->id,
                                      .graph = capture->graph,
                                      .tips = stream->tips,
                                      .tip_count = stream->tip_count};
    pthread_mutex_unlock(&lock);
    return result;
}
