/* Simulated CUDA driver: modules and libraries, which take memory of the GPU when they are loaded. */
#include "contents.h"
#include "cuda_call.h"
#include "functions.h"

#include <stdlib.h>

#define MIB (UINT64_C(1) << 20)

enum { MARK = 0x6d6f6475 };

struct CUmod_st {
    unsigned mark;
    struct sim_content content;
};

static CUresult load(const char *function, CUmodule *module, const void *image)
{
    struct cuda_call call;
    CUresult result = cuda_begin_context(&call, function);
    if (result == CUDA_SUCCESS && (!module || !image))
        result = CUDA_ERROR_INVALID_VALUE;
    if (result != CUDA_SUCCESS)
        return cuda_end(&call, result);
    struct CUmod_st *made = calloc(1, sizeof *made);
    if (!made || !sim_content_take(&call, &made->content, call.gpu->module_mib * MIB)) {
        free(made);
        return cuda_end(&call, CUDA_ERROR_OUT_OF_MEMORY);
    }
    made->mark = MARK;
    *module = made;
    return cuda_end(&call, CUDA_SUCCESS);
}

static CUresult unload(const char *function, CUmodule module)
{
    struct cuda_call call;
    CUresult result = cuda_begin(&call, function);
    if (result == CUDA_SUCCESS && (!module || module->mark != MARK))
        result = CUDA_ERROR_INVALID_HANDLE;
    if (result == CUDA_SUCCESS) {
        sim_content_give(&module->content);
        module->mark = 0; /* never freed: functions of it may be asked about */
    }
    return cuda_end(&call, result);
}

EXPORT CUresult cuModuleLoad(CUmodule *module, const char *path)
{
    return load(__func__, module, path);
}

EXPORT CUresult cuModuleLoadData(CUmodule *module, const void *image)
{
    return load(__func__, module, image);
}

EXPORT CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned count, CUjit_option *options,
                                   void **values)
{
    (void)count, (void)options, (void)values;
    return load(__func__, module, image);
}

EXPORT CUresult cuModuleLoadFatBinary(CUmodule *module, const void *image)
{
    return load(__func__, module, image);
}

EXPORT CUresult cuModuleUnload(CUmodule module)
{
    return unload(__func__, module);
}

/* A library is its one module here, loaded at once as with CUDA_MODULE_LOADING=EAGER. */
EXPORT CUresult cuLibraryLoadData(CUlibrary *library, const void *image, CUjit_option *jit_options,
                                  void **jit_values, unsigned jit_count, CUlibraryOption *options,
                                  void **values, unsigned count)
{
    (void)jit_options, (void)jit_values, (void)jit_count, (void)options, (void)values, (void)count;
    return load(__func__, (CUmodule *)(void *)library, image);
}

EXPORT CUresult cuLibraryLoadFromFile(CUlibrary *library, const char *path, CUjit_option *jit_options,
                                      void **jit_values, unsigned jit_count, CUlibraryOption *options,
                                      void **values, unsigned count)
{
    (void)jit_options, (void)jit_values, (void)jit_count, (void)options, (void)values, (void)count;
    return load(__func__, (CUmodule *)(void *)library, path);
}

EXPORT CUresult cuLibraryUnload(CUlibrary library)
{
    return unload(__func__, (CUmodule)(void *)library);
}

/* A variable of as many MiB as its name says, whose pages are the host's. */
EXPORT CUresult cuLibraryGetManaged(CUdeviceptr *address, size_t *bytes, CUlibrary library, const char *name)
{
    FAIL_IF_TOLD;
    if ((!address && !bytes) || !library || !name)
        return CUDA_ERROR_INVALID_VALUE;
    uint64_t mib = strtoull(name, NULL, 10);
    if (!mib)
        return CUDA_ERROR_NOT_FOUND;
    if (address)
        *address = (CUdeviceptr)(uintptr_t)library + mib;
    if (bytes)
        *bytes = mib * MIB;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuLibraryGetModule(CUmodule *module, CUlibrary library)
{
    FAIL_IF_TOLD;
    if (!module || !library)
        return CUDA_ERROR_INVALID_VALUE;
    *module = (CUmodule)(void *)library;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuLibraryGetKernel(CUkernel *kernel, CUlibrary library, const char *name)
{
    FAIL_IF_TOLD;
    if (!kernel || !library || !name)
        return CUDA_ERROR_INVALID_VALUE;
    *kernel = (CUkernel)(void *)function_named((CUmodule)(void *)library, name);
    return *kernel ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}
