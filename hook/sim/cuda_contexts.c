/* Simulated CUDA driver: contexts and each thread's stack of them. A process with a context on a GPU is
 * listed there by NVML, with the memory it holds.
 */
#include "clock.h"
#include "contents.h"
#include "contexts.h"
#include "cuda_call.h"
#include "execution.h"
#include "memory.h"
#include "pools.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { STACK_DEPTH = 32 };

static _Thread_local CUcontext stack[STACK_DEPTH];
static _Thread_local size_t depth;

#define MIB (UINT64_C(1) << 20)
#define END_NS 5000000 /* of virtual time, for the end of a context */

enum { /* CUlimit */
       LIMIT_STACK_SIZE = 0,
       LIMITS = 8,
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct CUctx_st primaries[MAX_GPUS];

/* No context survives fork. */
static void forget_after_fork(void)
{
    pthread_mutex_init(&lock, NULL);
    memset(primaries, 0, sizeof primaries);
    depth = 0;
}

static __attribute__((constructor)) void watch_forks(void)
{
    pthread_atfork(NULL, NULL, forget_after_fork);
}

CUcontext current_context(void)
{
    return depth ? stack[depth - 1] : NULL;
}

/* What a context takes besides: nothing until the program raises a limit. */
static uint64_t limit_bytes(const struct CUctx_st *context)
{
    return context->heap_bytes;
}

CUresult sim_context_appears(const struct cuda_call *call, uint64_t bytes)
{
    switch (sim_memory_take(call->gpu->uuid, bytes, capacity_bytes(call))) {
    case SIM_MEMORY_DONE:
        return CUDA_SUCCESS;
    case SIM_MEMORY_FULL:
        return CUDA_ERROR_OUT_OF_MEMORY;
    default:
        return CUDA_ERROR_OPERATING_SYSTEM;
    }
}

/* No two contexts of a process have the same, not even one after the other. */
static unsigned long long next_id(void)
{
    static _Atomic unsigned long long made;
    return ++made;
}

uint64_t sim_context_bytes(const struct cuda_call *call)
{
    return call->gpu->context_mib * MIB;
}

/* Half of the time that a context takes. */
static void spend_half(const struct cuda_call *call)
{
    long us = call->gpu->context_ms * 500;
    struct timespec left = {.tv_sec = us / 1000000, .tv_nsec = us % 1000000 * 1000};
    while (us && nanosleep(&left, &left) != 0) { }
}

CUresult sim_primary_retain(const struct cuda_call *call, CUdevice device, CUcontext *context)
{
    pthread_mutex_lock(&lock);
    struct CUctx_st *primary = &primaries[device];
    bool first = !primary->references || primary->reset;
    uint64_t cost = first ? sim_context_bytes(call) : 0, early = call->gpu->context_ms ? cost / 2 : 0;
    CUresult result = sim_context_appears(call, early);
    if (first)
        spend_half(call);
    if (result == CUDA_SUCCESS && (result = sim_context_appears(call, cost - early)) != CUDA_SUCCESS)
        sim_memory_give(call->gpu->uuid, early, false);
    if (first)
        spend_half(call);
    if (result == CUDA_SUCCESS) {
        primary->device = device;
        primary->primary = true;
        primary->references++;
        primary->bytes += cost;
        primary->reset = false;
        if (primary->references == 1)
            primary->id = next_id();
        *context = primary;
    }
    pthread_mutex_unlock(&lock);
    return result;
}

EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
    struct cuda_call call;
    CUresult result = cuda_begin_device(&call, __func__, device);
    if (result == CUDA_SUCCESS && !context)
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        result = sim_primary_retain(&call, device, context);
    return cuda_end(&call, result);
}

/* Called with the lock held. */
static void disappear(const struct cuda_call *call, struct CUctx_st *context)
{
    sim_memory_end_context(context);
    sim_contents_end_context(context);
    sim_streams_end_context(context);
    sim_events_end_context(context);
    sim_memory_give(call->gpu->uuid, context->bytes + limit_bytes(context), false);
    context->bytes = context->heap_bytes = 0;
}

CUresult sim_primary_release(const struct cuda_call *call, CUdevice device)
{
    pthread_mutex_lock(&lock);
    CUresult result = primaries[device].references ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
    bool last = primaries[device].references && --primaries[device].references == 0;
    if (last)
        disappear(call, &primaries[device]);
    pthread_mutex_unlock(&lock);
    if (last)
        clock_spend(END_NS);
    return result;
}

static CUresult release(const char *function, CUdevice device)
{
    struct cuda_call call;
    CUresult result = cuda_begin_device(&call, function, device);
    if (result == CUDA_SUCCESS)
        result = sim_primary_release(&call, device);
    return cuda_end(&call, result);
}

EXPORT CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
    return release(__func__, device);
}

EXPORT CUresult cuDevicePrimaryCtxRelease(CUdevice device)
{
    return release(__func__, device);
}

/* The references stay: the context is made anew at its next use, which here is at once, and for nothing until
 * it is retained once more. */
static CUresult reset(const char *function, CUdevice device)
{
    struct cuda_call call;
    CUresult result = cuda_begin_device(&call, function, device);
    if (result == CUDA_SUCCESS) {
        pthread_mutex_lock(&lock);
        disappear(&call, &primaries[device]);
        primaries[device].reset = primaries[device].references > 0;
        primaries[device].id = next_id();
        pthread_mutex_unlock(&lock);
    }
    return cuda_end(&call, result);
}

EXPORT CUresult cuDevicePrimaryCtxReset_v2(CUdevice device)
{
    return reset(__func__, device);
}

EXPORT CUresult cuDevicePrimaryCtxReset(CUdevice device)
{
    return reset(__func__, device);
}

EXPORT CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active)
{
    struct cuda_call call;
    CUresult result = cuda_begin_device(&call, __func__, device);
    if (result == CUDA_SUCCESS && flags)
        *flags = 0;
    if (result == CUDA_SUCCESS && active) {
        pthread_mutex_lock(&lock);
        *active = primaries[device].references > 0;
        pthread_mutex_unlock(&lock);
    }
    return cuda_end(&call, result);
}

static CUresult push(CUcontext context)
{
    if (depth == STACK_DEPTH)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (context->parent)
        sim_green_enter(context);
    stack[depth++] = context;
    return CUDA_SUCCESS;
}

static CUcontext pop(void)
{
    CUcontext context = stack[--depth];
    sim_green_leave(context);
    return context;
}

static CUresult create(const char *function, CUcontext *context, CUdevice device)
{
    struct cuda_call call;
    CUresult result = cuda_begin_device(&call, function, device);
    if (result == CUDA_SUCCESS && !context)
        result = CUDA_ERROR_INVALID_VALUE;
    struct CUctx_st *made = result == CUDA_SUCCESS ? calloc(1, sizeof *made) : NULL;
    if (made) {
        *made = (struct CUctx_st){.device = device, .id = next_id(), .bytes = sim_context_bytes(&call)};
        result = sim_context_appears(&call, made->bytes);
        if (result == CUDA_SUCCESS && (result = push(made)) != CUDA_SUCCESS)
            sim_memory_give(call.gpu->uuid, made->bytes, false);
        if (result == CUDA_SUCCESS)
            *context = made;
        else
            free(made);
    }
    return cuda_end(&call, result);
}

EXPORT CUresult cuCtxCreate_v2(CUcontext *context, unsigned flags, CUdevice device)
{
    (void)flags;
    return create(__func__, context, device);
}

EXPORT CUresult cuCtxCreate(CUcontext *context, unsigned flags, CUdevice device)
{
    (void)flags;
    return create(__func__, context, device);
}

EXPORT CUresult cuCtxCreate_v3(CUcontext *context, CUexecAffinityParam *affinity, int count, unsigned flags,
                               CUdevice device)
{
    (void)affinity, (void)count, (void)flags;
    return create(__func__, context, device);
}

EXPORT CUresult cuCtxCreate_v4(CUcontext *context, CUctxCreateParams *parameters, unsigned flags,
                               CUdevice device)
{
    (void)parameters, (void)flags;
    return create(__func__, context, device);
}

static CUresult destroy(const char *function, CUcontext context)
{
    struct cuda_call call;
    if (!context || context->primary)
        return CUDA_ERROR_INVALID_CONTEXT;
    CUresult result = cuda_begin_device(&call, function, context->device);
    if (result == CUDA_SUCCESS) {
        if (current_context() == context)
            depth--;
        pthread_mutex_lock(&lock);
        disappear(&call, context);
        pthread_mutex_unlock(&lock);
        execution_end_context(call.gpu->uuid, context_number(context));
        clock_spend(END_NS);
        free(context);
    }
    return cuda_end(&call, result);
}

EXPORT CUresult cuCtxDestroy_v2(CUcontext context)
{
    FAIL_IF_TOLD;
    return destroy(__func__, context);
}

EXPORT CUresult cuCtxDestroy(CUcontext context)
{
    FAIL_IF_TOLD;
    return destroy(__func__, context);
}

/* --- users of a context, of before CUDA 4 --------------------------------------------------------------- */

EXPORT CUresult cuCtxAttach(CUcontext *context, unsigned flags)
{
    struct cuda_call call;
    CUresult result = cuda_begin_context(&call, __func__);
    if (result == CUDA_SUCCESS && (!context || flags))
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS) {
        *context = current_context();
        pthread_mutex_lock(&lock);
        (*context)->attached++;
        pthread_mutex_unlock(&lock);
    }
    return cuda_end(&call, result);
}

/* Who made it is a user as well, but of a primary or green one. */
EXPORT CUresult cuCtxDetach(CUcontext context)
{
    FAIL_IF_TOLD;
    if (!context || context != current_context())
        return CUDA_ERROR_INVALID_CONTEXT;
    pthread_mutex_lock(&lock);
    bool attached = context->attached;
    context->attached -= attached;
    pthread_mutex_unlock(&lock);
    if (attached)
        return CUDA_SUCCESS;
    return context->parent ? CUDA_ERROR_INVALID_CONTEXT : destroy(__func__, context);
}

EXPORT CUresult cuCtxGetId(CUcontext context, unsigned long long *id)
{
    struct cuda_call call;
    CUresult result = context ? cuda_begin(&call, __func__) : cuda_begin_context(&call, __func__);
    if (result == CUDA_SUCCESS && !id)
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        *id = (context ? context : current_context())->id;
    return cuda_end(&call, result);
}

/* --- limits: a larger heap is taken at once ------------------------------------------------------------- */

EXPORT CUresult cuCtxSetLimit(CUlimit limit, size_t value)
{
    struct cuda_call call;
    CUresult result = cuda_begin_context(&call, __func__);
    if (result == CUDA_SUCCESS && (limit < 0 || limit >= LIMITS))
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS && limit == LIMIT_MALLOC_HEAP_SIZE) {
        struct CUctx_st *context = whole_context(current_context());
        pthread_mutex_lock(&lock);
        if (value > context->heap_bytes)
            result = sim_context_appears(&call, value - context->heap_bytes);
        else
            sim_memory_give(call.gpu->uuid, context->heap_bytes - value, false);
        if (result == CUDA_SUCCESS)
            context->heap_bytes = value;
        pthread_mutex_unlock(&lock);
    }
    return cuda_end(&call, result);
}

EXPORT CUresult cuCtxGetLimit(size_t *value, CUlimit limit)
{
    struct cuda_call call;
    CUresult result = cuda_begin_context(&call, __func__);
    if (result == CUDA_SUCCESS && (!value || limit < 0 || limit >= LIMITS))
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        *value = limit == LIMIT_MALLOC_HEAP_SIZE ? whole_context(current_context())->heap_bytes
            : limit == LIMIT_STACK_SIZE          ? 1024
                                                 : MIB;
    return cuda_end(&call, result);
}

/* --- the current context -------------------------------------------------------------------------------- */

EXPORT CUresult cuCtxSetCurrent(CUcontext context)
{
    FAIL_IF_TOLD;
    if (depth)
        pop();
    return context ? push(context) : CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetCurrent(CUcontext *context)
{
    FAIL_IF_TOLD;
    if (!context)
        return CUDA_ERROR_INVALID_VALUE;
    *context = current_context();
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxPushCurrent_v2(CUcontext context)
{
    FAIL_IF_TOLD;
    return context ? push(context) : CUDA_ERROR_INVALID_CONTEXT;
}

EXPORT CUresult cuCtxPopCurrent_v2(CUcontext *context)
{
    FAIL_IF_TOLD;
    if (!depth)
        return CUDA_ERROR_INVALID_CONTEXT;
    CUcontext popped = pop();
    if (context)
        *context = popped;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetDevice(CUdevice *device)
{
    struct cuda_call call;
    CUresult result = cuda_begin_context(&call, __func__);
    if (result == CUDA_SUCCESS && !device)
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        *device = current_context()->device;
    return cuda_end(&call, result);
}

/* Where the stream side has none of its own. */
__attribute__((weak)) EXPORT CUresult cuCtxSynchronize(void)
{
    struct cuda_call call;
    CUresult result = cuda_end(&call, cuda_begin_context(&call, __func__));
    if (result == CUDA_SUCCESS)
        sim_pools_synchronised();
    return result;
}
