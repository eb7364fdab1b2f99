/* Arrays and mipmaps. */
#include "real.h"

EXPORT CUresult cuArrayCreate(CUarray *a, const CUDA_ARRAY_DESCRIPTOR_v1 *b)
{
    const struct real_cuda *real = real_cuda();
    return real && real->cuArrayCreate ? real->cuArrayCreate(a, b) : CUDA_ERROR_NOT_INITIALIZED;
}

EXPORT CUresult cuArrayCreate_v2(CUarray *a, const CUDA_ARRAY_DESCRIPTOR *b)
{
    const struct real_cuda *real = real_cuda();
    return real && real->cuArrayCreate_v2 ? real->cuArrayCreate_v2(a, b) : CUDA_ERROR_NOT_INITIALIZED;
}

EXPORT CUresult cuArray3DCreate(CUarray *a, const CUDA_ARRAY3D_DESCRIPTOR_v1 *b)
{
    const struct real_cuda *real = real_cuda();
    return real && real->cuArray3DCreate ? real->cuArray3DCreate(a, b) : CUDA_ERROR_NOT_INITIALIZED;
}

EXPORT CUresult cuArray3DCreate_v2(CUarray *a, const CUDA_ARRAY3D_DESCRIPTOR *b)
{
    const struct real_cuda *real = real_cuda();
    return real && real->cuArray3DCreate_v2 ? real->cuArray3DCreate_v2(a, b) : CUDA_ERROR_NOT_INITIALIZED;
}

EXPORT CUresult cuArrayDestroy(CUarray a)
{
    const struct real_cuda *real = real_cuda();
    return real && real->cuArrayDestroy ? real->cuArrayDestroy(a) : CUDA_ERROR_NOT_INITIALIZED;
}

EXPORT CUresult cuMipmappedArrayCreate(CUmipmappedArray *a, const CUDA_ARRAY3D_DESCRIPTOR *b, unsigned int c)
{
    const struct real_cuda *real = real_cuda();
    return real && real->cuMipmappedArrayCreate ? real->cuMipmappedArrayCreate(a, b, c)
                                                : CUDA_ERROR_NOT_INITIALIZED;
}

EXPORT CUresult cuMipmappedArrayDestroy(CUmipmappedArray a)
{
    const struct real_cuda *real = real_cuda();
    return real && real->cuMipmappedArrayDestroy ? real->cuMipmappedArrayDestroy(a)
                                                 : CUDA_ERROR_NOT_INITIALIZED;
}
