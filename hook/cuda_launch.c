/* Everything that makes the GPU compute. */
#include "real.h"

EXPORT CUresult cuLaunch(CUfunction a)
{
    const struct real_cuda *real = real_cuda();
    return real && real->cuLaunch ? real->cuLaunch(a) : CUDA_ERROR_NOT_INITIALIZED;
}

EXPORT CUresult cuLaunchGrid(CUfunction a, int b, int c)
{
    const struct real_cuda *real = real_cuda();
    return real && real->cuLaunchGrid ? real->cuLaunchGrid(a, b, c) : CUDA_ERROR_NOT_INITIALIZED;
}

EXPORT CUresult cuLaunchGridAsync(CUfunction a, int b, int c, CUstream d)
{
    const struct real_cuda *real = real_cuda();
    return real && real->cuLaunchGridAsync ? real->cuLaunchGridAsync(a, b, c, d) : CUDA_ERROR_NOT_INITIALIZED;
}

EXPORT CUresult cuLaunchKernel(CUfunction a, unsigned int b, unsigned int c, unsigned int d, unsigned int e,
                               unsigned int f, unsigned int g, unsigned int h, CUstream i, void **j, void **k)
{
    const struct real_cuda *real = real_cuda();
    return real && real->cuLaunchKernel ? real->cuLaunchKernel(a, b, c, d, e, f, g, h, i, j, k)
                                        : CUDA_ERROR_NOT_INITIALIZED;
}

EXPORT CUresult cuLaunchKernel_ptsz(CUfunction a, unsigned int b, unsigned int c, unsigned int d,
                                    unsigned int e, unsigned int f, unsigned int g, unsigned int h,
                                    CUstream i, void **j, void **k)
{
    const struct real_cuda *real = real_cuda();
    return real && real->cuLaunchKernel_ptsz ? real->cuLaunchKernel_ptsz(a, b, c, d, e, f, g, h, i, j, k)
                                             : CUDA_ERROR_NOT_INITIALIZED;
}

EXPORT CUresult cuLaunchKernelEx(const CUlaunchConfig *a, CUfunction b, void **c, void **d)
{
    const struct real_cuda *real = real_cuda();
    return real && real->cuLaunchKernelEx ? real->cuLaunchKernelEx(a, b, c, d) : CUDA_ERROR_NOT_INITIALIZED;
}

EXPORT CUresult cuLaunchKernelEx_ptsz(const CUlaunchConfig *a, CUfunction b, void **c, void **d)
{
    const struct real_cuda *real = real_cuda();
    return real && real->cuLaunchKernelEx_ptsz ? real->cuLaunchKernelEx_ptsz(a, b, c, d)
                                               : CUDA_ERROR_NOT_INITIALIZED;
}

EXPORT CUresult cuLaunchCooperativeKernel(CUfunction a, unsigned int b, unsigned int c, unsigned int d,
                                          unsigned int e, unsigned int f, unsigned int g, unsigned int h,
                                          CUstream i, void **j)
{
    const struct real_cuda *real = real_cuda();
    return real && real->cuLaunchCooperativeKernel
        ? real->cuLaunchCooperativeKernel(a, b, c, d, e, f, g, h, i, j)
        : CUDA_ERROR_NOT_INITIALIZED;
}

EXPORT CUresult cuLaunchCooperativeKernel_ptsz(CUfunction a, unsigned int b, unsigned int c, unsigned int d,
                                               unsigned int e, unsigned int f, unsigned int g, unsigned int h,
                                               CUstream i, void **j)
{
    const struct real_cuda *real = real_cuda();
    return real && real->cuLaunchCooperativeKernel_ptsz
        ? real->cuLaunchCooperativeKernel_ptsz(a, b, c, d, e, f, g, h, i, j)
        : CUDA_ERROR_NOT_INITIALIZED;
}

EXPORT CUresult cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS *a, unsigned int b, unsigned int c)
{
    const struct real_cuda *real = real_cuda();
    return real && real->cuLaunchCooperativeKernelMultiDevice
        ? real->cuLaunchCooperativeKernelMultiDevice(a, b, c)
        : CUDA_ERROR_NOT_INITIALIZED;
}

EXPORT CUresult cuGraphLaunch(CUgraphExec a, CUstream b)
{
    const struct real_cuda *real = real_cuda();
    return real && real->cuGraphLaunch ? real->cuGraphLaunch(a, b) : CUDA_ERROR_NOT_INITIALIZED;
}

EXPORT CUresult cuGraphLaunch_ptsz(CUgraphExec a, CUstream b)
{
    const struct real_cuda *real = real_cuda();
    return real && real->cuGraphLaunch_ptsz ? real->cuGraphLaunch_ptsz(a, b) : CUDA_ERROR_NOT_INITIALIZED;
}
