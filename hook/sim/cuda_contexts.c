/* Simulated CUDA driver: contexts and each thread's stack of them. A process with a context on a GPU is
 * listed there by NVML, with the memory it holds.
 */
#include "cuda_call.h"
#include "memory.h"

#include <pthread.h>
#include <stdlib.h>

enum { STACK_DEPTH = 32 };

static _Thread_local CUcontext stack[STACK_DEPTH];
static _Thread_local size_t depth;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct CUctx_st primaries[MAX_GPUS];

CUcontext current_context(void)
{
    return depth ? stack[depth - 1] : NULL;
}

static CUresult appear(const struct cuda_call *call)
{
    return sim_memory_take(call->gpu->uuid, 0, capacity_bytes(call)) == SIM_MEMORY_DONE
        ? CUDA_SUCCESS
        : CUDA_ERROR_OPERATING_SYSTEM;
}

EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
    struct cuda_call call;
    CUresult result = cuda_begin_device(&call, __func__, device);
    if (result == CUDA_SUCCESS)
        result = context ? appear(&call) : CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS) {
        pthread_mutex_lock(&lock);
        primaries[device].device = device;
        primaries[device].primary = true;
        primaries[device].references++;
        pthread_mutex_unlock(&lock);
        *context = &primaries[device];
    }
    return cuda_end(&call, result);
}

EXPORT CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
    struct cuda_call call;
    CUresult result = cuda_begin_device(&call, __func__, device);
    if (result == CUDA_SUCCESS) {
        pthread_mutex_lock(&lock);
        result = primaries[device].references ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
        if (primaries[device].references)
            primaries[device].references--;
        pthread_mutex_unlock(&lock);
    }
    return cuda_end(&call, result);
}

EXPORT CUresult cuDevicePrimaryCtxRelease(CUdevice device)
{
    return cuDevicePrimaryCtxRelease_v2(device);
}

static CUresult push(CUcontext context)
{
    if (depth == STACK_DEPTH)
        return CUDA_ERROR_OUT_OF_MEMORY;
    stack[depth++] = context;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxCreate_v2(CUcontext *context, unsigned flags, CUdevice device)
{
    (void)flags;
    struct cuda_call call;
    CUresult result = cuda_begin_device(&call, __func__, device);
    if (result == CUDA_SUCCESS)
        result = context ? appear(&call) : CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS) {
        *context = calloc(1, sizeof **context);
        result = *context ? push(*context) : CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (result == CUDA_SUCCESS)
        (*context)->device = device;
    return cuda_end(&call, result);
}

EXPORT CUresult cuCtxDestroy_v2(CUcontext context)
{
    if (!context || context->primary)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (current_context() == context)
        depth--;
    free(context);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxSetCurrent(CUcontext context)
{
    if (depth)
        depth--;
    return context ? push(context) : CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetCurrent(CUcontext *context)
{
    if (!context)
        return CUDA_ERROR_INVALID_VALUE;
    *context = current_context();
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxPushCurrent_v2(CUcontext context)
{
    return context ? push(context) : CUDA_ERROR_INVALID_CONTEXT;
}

EXPORT CUresult cuCtxPopCurrent_v2(CUcontext *context)
{
    if (!depth)
        return CUDA_ERROR_INVALID_CONTEXT;
    depth--;
    if (context)
        *context = stack[depth];
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

EXPORT CUresult cuCtxSynchronize(void)
{
    struct cuda_call call;
    return cuda_end(&call, cuda_begin_context(&call, __func__));
}
