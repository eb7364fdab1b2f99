/* Simulated CUDA driver: green contexts. Each is a part of the GPU, costs a quarter of a context besides the
 * device's primary one, which it retains, and can be current to one thread at a time. Memory, code and heap
 * are the primary one's, whichever of the two is current.
 */
#include "contexts.h"
#include "memory.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_CURRENT = 64 };

struct CUgreenCtx_st {
    struct CUctx_st at_handle, apart; /* what cuCtxFromGreenCtx gives is one of them */
    CUcontext context;
    uint64_t bytes;
};

/* Who has which current, and how many times on its stack. */
static struct current {
    const struct CUctx_st *context;
    pthread_t thread;
    unsigned times;
} currents[MOST_CURRENT];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_key_t thread_end;

/* Called with the lock held; NULL is a free one. */
static struct current *find(const struct CUctx_st *context)
{
    for (size_t i = 0; i < MOST_CURRENT; i++)
        if (currents[i].context == context)
            return &currents[i];
    return NULL;
}

static void leave_all(void *unused)
{
    (void)unused;
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < MOST_CURRENT; i++)
        if (currents[i].context && pthread_equal(currents[i].thread, pthread_self()))
            currents[i].context = NULL;
    pthread_mutex_unlock(&lock);
}

static void forget_after_fork(void)
{
    pthread_mutex_init(&lock, NULL);
    memset(currents, 0, sizeof currents);
}

static __attribute__((constructor)) void watch_threads_and_forks(void)
{
    pthread_key_create(&thread_end, leave_all);
    pthread_atfork(NULL, NULL, forget_after_fork);
}

void sim_green_enter(CUcontext context)
{
    pthread_mutex_lock(&lock);
    struct current *current = find(context);
    if (current && !pthread_equal(current->thread, pthread_self())) {
        fprintf(stderr, "simulated driver: a green context is made current to a second thread\n");
        abort();
    }
    if (!current && (current = find(NULL)))
        *current = (struct current){.context = context, .thread = pthread_self()};
    if (current)
        current->times++;
    pthread_setspecific(thread_end, context);
    pthread_mutex_unlock(&lock);
}

void sim_green_leave(const struct CUctx_st *context)
{
    pthread_mutex_lock(&lock);
    struct current *current = context ? find(context) : NULL;
    if (current && pthread_equal(current->thread, pthread_self()) && --current->times == 0)
        current->context = NULL;
    pthread_mutex_unlock(&lock);
}

static void leave_for_good(const struct CUctx_st *context)
{
    pthread_mutex_lock(&lock);
    struct current *current = find(context);
    if (current)
        current->context = NULL;
    pthread_mutex_unlock(&lock);
}

EXPORT CUresult cuGreenCtxCreate(CUgreenCtx *green, CUdevResourceDesc description, CUdevice device,
                                 unsigned flags)
{
    (void)flags;
    struct cuda_call call;
    CUresult result = cuda_begin_device(&call, __func__, device);
    if (result == CUDA_SUCCESS && (!green || !description))
        result = CUDA_ERROR_INVALID_VALUE;
    struct CUgreenCtx_st *made = result == CUDA_SUCCESS ? calloc(1, sizeof *made) : NULL;
    if (made)
        made->context = call.node->green_apart ? &made->apart : &made->at_handle;
    if (result == CUDA_SUCCESS)
        result = made ? sim_primary_retain(&call, device, &made->context->parent) : CUDA_ERROR_OUT_OF_MEMORY;
    if (result == CUDA_SUCCESS) {
        made->context->device = device;
        made->bytes = sim_context_bytes(&call) / 4;
        result = sim_context_appears(&call, made->bytes);
        if (result != CUDA_SUCCESS)
            sim_primary_release(&call, device);
    }
    if (result == CUDA_SUCCESS)
        *green = made;
    else
        free(made);
    return cuda_end(&call, result);
}

EXPORT CUresult cuGreenCtxDestroy(CUgreenCtx green)
{
    FAIL_IF_TOLD;
    struct cuda_call call;
    if (!green)
        return CUDA_ERROR_INVALID_VALUE;
    CUdevice device = green->context->device;
    CUresult result = cuda_begin_device(&call, __func__, device);
    if (result == CUDA_SUCCESS) {
        leave_for_good(green->context);
        sim_streams_end_context(green->context);
        sim_memory_give(call.gpu->uuid, green->bytes, false);
        free(green);
        sim_primary_release(&call, device);
    }
    return cuda_end(&call, result);
}

EXPORT CUresult cuCtxFromGreenCtx(CUcontext *context, CUgreenCtx green)
{
    FAIL_IF_TOLD;
    if (!context || !green)
        return CUDA_ERROR_INVALID_VALUE;
    *context = green->context;
    return CUDA_SUCCESS;
}
