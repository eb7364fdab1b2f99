/* Code that is loaded, and what it costs. */
#include "real.h"

EXPORT CUresult cuModuleLoad(CUmodule *a, const char *b)
{
    const struct real_cuda *real = real_cuda();
    return real && real->cuModuleLoad ? real->cuModuleLoad(a, b) : CUDA_ERROR_NOT_INITIALIZED;
}

EXPORT CUresult cuModuleLoadData(CUmodule *a, const void *b)
{
    const struct real_cuda *real = real_cuda();
    return real && real->cuModuleLoadData ? real->cuModuleLoadData(a, b) : CUDA_ERROR_NOT_INITIALIZED;
}

EXPORT CUresult cuModuleLoadDataEx(CUmodule *a, const void *b, unsigned int c, CUjit_option *d, void **e)
{
    const struct real_cuda *real = real_cuda();
    return real && real->cuModuleLoadDataEx ? real->cuModuleLoadDataEx(a, b, c, d, e)
                                            : CUDA_ERROR_NOT_INITIALIZED;
}

EXPORT CUresult cuModuleLoadFatBinary(CUmodule *a, const void *b)
{
    const struct real_cuda *real = real_cuda();
    return real && real->cuModuleLoadFatBinary ? real->cuModuleLoadFatBinary(a, b)
                                               : CUDA_ERROR_NOT_INITIALIZED;
}

EXPORT CUresult cuModuleUnload(CUmodule a)
{
    const struct real_cuda *real = real_cuda();
    return real && real->cuModuleUnload ? real->cuModuleUnload(a) : CUDA_ERROR_NOT_INITIALIZED;
}

EXPORT CUresult cuLibraryLoadData(CUlibrary *a, const void *b, CUjit_option *c, void **d, unsigned int e,
                                  CUlibraryOption *f, void **g, unsigned int h)
{
    const struct real_cuda *real = real_cuda();
    return real && real->cuLibraryLoadData ? real->cuLibraryLoadData(a, b, c, d, e, f, g, h)
                                           : CUDA_ERROR_NOT_INITIALIZED;
}

EXPORT CUresult cuLibraryLoadFromFile(CUlibrary *a, const char *b, CUjit_option *c, void **d, unsigned int e,
                                      CUlibraryOption *f, void **g, unsigned int h)
{
    const struct real_cuda *real = real_cuda();
    return real && real->cuLibraryLoadFromFile ? real->cuLibraryLoadFromFile(a, b, c, d, e, f, g, h)
                                               : CUDA_ERROR_NOT_INITIALIZED;
}

EXPORT CUresult cuLibraryUnload(CUlibrary a)
{
    const struct real_cuda *real = real_cuda();
    return real && real->cuLibraryUnload ? real->cuLibraryUnload(a) : CUDA_ERROR_NOT_INITIALIZED;
}
