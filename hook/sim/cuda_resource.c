/* Simulated CUDA driver: the parts of a GPU that green contexts are made of, as far as anyone asks: its
 * multiprocessors, all of them; and the tables that only the vendor's own libraries know.
 */
#include "cuda_call.h"

#include <string.h>

enum { RESOURCE_SM = 1, MULTIPROCESSORS = 84 };

/* The beginning of CUdevResource; the rest is not looked at. */
struct resource {
    int type;
    unsigned char internal[92];
    unsigned multiprocessors;
};

static CUresult describe(CUdevResource *resource, CUdevResourceType type)
{
    if (!resource)
        return CUDA_ERROR_INVALID_VALUE;
    if (type != RESOURCE_SM)
        return CUDA_ERROR_NOT_SUPPORTED;
    const struct resource all = {.type = RESOURCE_SM, .multiprocessors = MULTIPROCESSORS};
    memcpy(resource, &all, sizeof all);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetDevResource(CUdevice device, CUdevResource *resource, CUdevResourceType type)
{
    struct cuda_call call;
    CUresult result = cuda_begin_device(&call, __func__, device);
    return cuda_end(&call, result == CUDA_SUCCESS ? describe(resource, type) : result);
}

EXPORT CUresult cuGreenCtxGetDevResource(CUgreenCtx green, CUdevResource *resource, CUdevResourceType type)
{
    struct cuda_call call;
    CUresult result = cuda_begin(&call, __func__);
    if (result == CUDA_SUCCESS && !green)
        result = CUDA_ERROR_INVALID_CONTEXT;
    return cuda_end(&call, result == CUDA_SUCCESS ? describe(resource, type) : result);
}

EXPORT CUresult cuDevResourceGenerateDesc(CUdevResourceDesc *description, CUdevResource *resources,
                                          unsigned count)
{
    static char mark;
    struct cuda_call call;
    CUresult result = cuda_begin(&call, __func__);
    if (result == CUDA_SUCCESS && (!description || !resources || !count))
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        *description = (CUdevResourceDesc)(void *)&mark;
    return cuda_end(&call, result);
}

EXPORT CUresult cuGetExportTable(const void **table, const CUuuid *uuid)
{
    struct cuda_call call;
    CUresult result = cuda_begin(&call, __func__);
    if (result == CUDA_SUCCESS)
        result = table && uuid ? CUDA_ERROR_NOT_FOUND : CUDA_ERROR_INVALID_VALUE;
    return cuda_end(&call, result);
}
