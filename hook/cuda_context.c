/* Contexts, and what they cost. */
#include "gpu_time.h"
#include "real.h"

EXPORT CUresult cuCtxCreate(CUcontext *a, unsigned int b, CUdevice c)
{
    const struct real_cuda *real = real_cuda();
    return real && real->cuCtxCreate ? real->cuCtxCreate(a, b, c) : CUDA_ERROR_NOT_INITIALIZED;
}

EXPORT CUresult cuCtxCreate_v2(CUcontext *a, unsigned int b, CUdevice c)
{
    const struct real_cuda *real = real_cuda();
    return real && real->cuCtxCreate_v2 ? real->cuCtxCreate_v2(a, b, c) : CUDA_ERROR_NOT_INITIALIZED;
}

EXPORT CUresult cuCtxCreate_v3(CUcontext *a, CUexecAffinityParam *b, int c, unsigned int d, CUdevice e)
{
    const struct real_cuda *real = real_cuda();
    return real && real->cuCtxCreate_v3 ? real->cuCtxCreate_v3(a, b, c, d, e) : CUDA_ERROR_NOT_INITIALIZED;
}

EXPORT CUresult cuCtxCreate_v4(CUcontext *a, CUctxCreateParams *b, unsigned int c, CUdevice d)
{
    const struct real_cuda *real = real_cuda();
    return real && real->cuCtxCreate_v4 ? real->cuCtxCreate_v4(a, b, c, d) : CUDA_ERROR_NOT_INITIALIZED;
}

EXPORT CUresult cuCtxDestroy(CUcontext a)
{
    gpu_time_context_ends(a);
    const struct real_cuda *real = real_cuda();
    return real && real->cuCtxDestroy ? real->cuCtxDestroy(a) : CUDA_ERROR_NOT_INITIALIZED;
}

EXPORT CUresult cuCtxDestroy_v2(CUcontext a)
{
    gpu_time_context_ends(a);
    const struct real_cuda *real = real_cuda();
    return real && real->cuCtxDestroy_v2 ? real->cuCtxDestroy_v2(a) : CUDA_ERROR_NOT_INITIALIZED;
}

EXPORT CUresult cuCtxSetLimit(CUlimit a, size_t b)
{
    const struct real_cuda *real = real_cuda();
    return real && real->cuCtxSetLimit ? real->cuCtxSetLimit(a, b) : CUDA_ERROR_NOT_INITIALIZED;
}

EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext *a, CUdevice b)
{
    const struct real_cuda *real = real_cuda();
    return real && real->cuDevicePrimaryCtxRetain ? real->cuDevicePrimaryCtxRetain(a, b)
                                                  : CUDA_ERROR_NOT_INITIALIZED;
}

EXPORT CUresult cuDevicePrimaryCtxRelease(CUdevice a)
{
    gpu_time_device_ends(a);
    const struct real_cuda *real = real_cuda();
    return real && real->cuDevicePrimaryCtxRelease ? real->cuDevicePrimaryCtxRelease(a)
                                                   : CUDA_ERROR_NOT_INITIALIZED;
}

EXPORT CUresult cuDevicePrimaryCtxRelease_v2(CUdevice a)
{
    gpu_time_device_ends(a);
    const struct real_cuda *real = real_cuda();
    return real && real->cuDevicePrimaryCtxRelease_v2 ? real->cuDevicePrimaryCtxRelease_v2(a)
                                                      : CUDA_ERROR_NOT_INITIALIZED;
}

EXPORT CUresult cuDevicePrimaryCtxReset(CUdevice a)
{
    gpu_time_device_ends(a);
    const struct real_cuda *real = real_cuda();
    return real && real->cuDevicePrimaryCtxReset ? real->cuDevicePrimaryCtxReset(a)
                                                 : CUDA_ERROR_NOT_INITIALIZED;
}

EXPORT CUresult cuDevicePrimaryCtxReset_v2(CUdevice a)
{
    gpu_time_device_ends(a);
    const struct real_cuda *real = real_cuda();
    return real && real->cuDevicePrimaryCtxReset_v2 ? real->cuDevicePrimaryCtxReset_v2(a)
                                                    : CUDA_ERROR_NOT_INITIALIZED;
}

EXPORT CUresult cuGreenCtxCreate(CUgreenCtx *a, CUdevResourceDesc b, CUdevice c, unsigned int d)
{
    const struct real_cuda *real = real_cuda();
    return real && real->cuGreenCtxCreate ? real->cuGreenCtxCreate(a, b, c, d) : CUDA_ERROR_NOT_INITIALIZED;
}

EXPORT CUresult cuGreenCtxDestroy(CUgreenCtx a)
{
    const struct real_cuda *real = real_cuda();
    return real && real->cuGreenCtxDestroy ? real->cuGreenCtxDestroy(a) : CUDA_ERROR_NOT_INITIALIZED;
}
