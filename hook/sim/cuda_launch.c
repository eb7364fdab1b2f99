/* Simulated CUDA driver: modules, streams and launches. A launch takes as long as the configuration says and
 * does nothing else.
 */
#include "cuda_call.h"

#include <time.h>

/* Handles that can be told from NULL; nobody looks inside. */
static char module_mark, function_mark, stream_mark;

EXPORT CUresult cuModuleLoadData(CUmodule *module, const void *image)
{
    struct cuda_call call;
    CUresult result = cuda_begin_context(&call, __func__);
    if (result == CUDA_SUCCESS && (!module || !image))
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        *module = (CUmodule)(void *)&module_mark;
    return cuda_end(&call, result);
}

EXPORT CUresult cuModuleUnload(CUmodule module)
{
    return (void *)module == &module_mark ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

EXPORT CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name)
{
    if (!function || !name || (void *)module != &module_mark)
        return CUDA_ERROR_INVALID_VALUE;
    *function = (CUfunction)(void *)&function_mark;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                               unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                               CUstream stream, void **parameters, void **extra)
{
    (void)shared_bytes, (void)stream, (void)parameters, (void)extra;
    struct cuda_call call;
    CUresult result = cuda_begin_context(&call, __func__);
    if (result == CUDA_SUCCESS
        && (!function || !grid_x || !grid_y || !grid_z || !block_x || !block_y || !block_z))
        result = CUDA_ERROR_INVALID_VALUE;
    unsigned kernel_us = result == CUDA_SUCCESS ? call.node->kernel_us : 0;
    cuda_end(&call, result);
    if (kernel_us) {
        struct timespec left = {.tv_sec = kernel_us / 1000000, .tv_nsec = (long)(kernel_us % 1000000) * 1000};
        nanosleep(&left, NULL);
    }
    return result;
}

EXPORT CUresult cuStreamCreate(CUstream *stream, unsigned flags)
{
    (void)flags;
    struct cuda_call call;
    CUresult result = cuda_begin_context(&call, __func__);
    if (result == CUDA_SUCCESS && !stream)
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        *stream = (CUstream)(void *)&stream_mark;
    return cuda_end(&call, result);
}

EXPORT CUresult cuStreamSynchronize(CUstream stream)
{
    (void)stream;
    struct cuda_call call;
    return cuda_end(&call, cuda_begin_context(&call, __func__));
}

EXPORT CUresult cuStreamDestroy_v2(CUstream stream)
{
    return (void *)stream == &stream_mark ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}
