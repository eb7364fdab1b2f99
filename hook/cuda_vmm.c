/* Physical memory by handle: charged when made, until neither a handle nor a mapping is left. */
#include "real.h"

EXPORT CUresult cuMemCreate(CUmemGenericAllocationHandle *a, size_t b, const CUmemAllocationProp *c,
                            unsigned long long d)
{
    const struct real_cuda *real = real_cuda();
    return real && real->cuMemCreate ? real->cuMemCreate(a, b, c, d) : CUDA_ERROR_NOT_INITIALIZED;
}

EXPORT CUresult cuMemRelease(CUmemGenericAllocationHandle a)
{
    const struct real_cuda *real = real_cuda();
    return real && real->cuMemRelease ? real->cuMemRelease(a) : CUDA_ERROR_NOT_INITIALIZED;
}

EXPORT CUresult cuMemMap(CUdeviceptr a, size_t b, size_t c, CUmemGenericAllocationHandle d,
                         unsigned long long e)
{
    const struct real_cuda *real = real_cuda();
    return real && real->cuMemMap ? real->cuMemMap(a, b, c, d, e) : CUDA_ERROR_NOT_INITIALIZED;
}

EXPORT CUresult cuMemUnmap(CUdeviceptr a, size_t b)
{
    const struct real_cuda *real = real_cuda();
    return real && real->cuMemUnmap ? real->cuMemUnmap(a, b) : CUDA_ERROR_NOT_INITIALIZED;
}

EXPORT CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *a, void *b)
{
    const struct real_cuda *real = real_cuda();
    return real && real->cuMemRetainAllocationHandle ? real->cuMemRetainAllocationHandle(a, b)
                                                     : CUDA_ERROR_NOT_INITIALIZED;
}

EXPORT CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *a, void *b,
                                               CUmemAllocationHandleType c)
{
    const struct real_cuda *real = real_cuda();
    return real && real->cuMemImportFromShareableHandle ? real->cuMemImportFromShareableHandle(a, b, c)
                                                        : CUDA_ERROR_NOT_INITIALIZED;
}

EXPORT CUresult cuMulticastBindMem(CUmemGenericAllocationHandle a, size_t b, CUmemGenericAllocationHandle c,
                                   size_t d, size_t e, unsigned long long f)
{
    const struct real_cuda *real = real_cuda();
    return real && real->cuMulticastBindMem ? real->cuMulticastBindMem(a, b, c, d, e, f)
                                            : CUDA_ERROR_NOT_INITIALIZED;
}

EXPORT CUresult cuMulticastBindMem_v2(CUmemGenericAllocationHandle a, CUdevice b, size_t c,
                                      CUmemGenericAllocationHandle d, size_t e, size_t f,
                                      unsigned long long g)
{
    const struct real_cuda *real = real_cuda();
    return real && real->cuMulticastBindMem_v2 ? real->cuMulticastBindMem_v2(a, b, c, d, e, f, g)
                                               : CUDA_ERROR_NOT_INITIALIZED;
}

EXPORT CUresult cuMulticastBindAddr(CUmemGenericAllocationHandle a, size_t b, CUdeviceptr c, size_t d,
                                    unsigned long long e)
{
    const struct real_cuda *real = real_cuda();
    return real && real->cuMulticastBindAddr ? real->cuMulticastBindAddr(a, b, c, d, e)
                                             : CUDA_ERROR_NOT_INITIALIZED;
}

EXPORT CUresult cuMulticastBindAddr_v2(CUmemGenericAllocationHandle a, CUdevice b, size_t c, CUdeviceptr d,
                                       size_t e, unsigned long long f)
{
    const struct real_cuda *real = real_cuda();
    return real && real->cuMulticastBindAddr_v2 ? real->cuMulticastBindAddr_v2(a, b, c, d, e, f)
                                                : CUDA_ERROR_NOT_INITIALIZED;
}

EXPORT CUresult cuMulticastUnbind(CUmemGenericAllocationHandle a, CUdevice b, size_t c, size_t d)
{
    const struct real_cuda *real = real_cuda();
    return real && real->cuMulticastUnbind ? real->cuMulticastUnbind(a, b, c, d) : CUDA_ERROR_NOT_INITIALIZED;
}

EXPORT CUresult cuMulticastCreate(CUmemGenericAllocationHandle *a, const CUmulticastObjectProp *b)
{
    const struct real_cuda *real = real_cuda();
    return real && real->cuMulticastCreate ? real->cuMulticastCreate(a, b) : CUDA_ERROR_NOT_INITIALIZED;
}
