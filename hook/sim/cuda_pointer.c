/* Simulated CUDA driver: what is known of an address without looking it up: all are device memory of the
 * current context.
 */
#include "cuda_call.h"

enum { POINTER_CONTEXT = 1, POINTER_MEMORY_TYPE = 2, POINTER_DEVICE_ADDRESS = 3, POINTER_DEVICE = 9 };
enum { TYPE_DEVICE = 2 };

static CUresult tell(void *value, CUpointer_attribute attribute, CUdeviceptr address)
{
    if (!value || !address)
        return CUDA_ERROR_INVALID_VALUE;
    switch (attribute) {
    case POINTER_CONTEXT:
        *(CUcontext *)value = current_context();
        return CUDA_SUCCESS;
    case POINTER_MEMORY_TYPE:
        *(unsigned *)value = TYPE_DEVICE;
        return CUDA_SUCCESS;
    case POINTER_DEVICE_ADDRESS:
        *(CUdeviceptr *)value = address;
        return CUDA_SUCCESS;
    case POINTER_DEVICE:
        *(int *)value = current_context()->device;
        return CUDA_SUCCESS;
    default:
        return CUDA_ERROR_NOT_SUPPORTED;
    }
}

EXPORT CUresult cuPointerGetAttribute(void *value, CUpointer_attribute attribute, CUdeviceptr address)
{
    struct cuda_call call;
    CUresult result = cuda_begin_context(&call, __func__);
    return cuda_end(&call, result == CUDA_SUCCESS ? tell(value, attribute, address) : result);
}

EXPORT CUresult cuPointerGetAttributes(unsigned count, CUpointer_attribute *attributes, void **values,
                                       CUdeviceptr address)
{
    struct cuda_call call;
    CUresult result = cuda_begin_context(&call, __func__);
    if (result == CUDA_SUCCESS && (!count || !attributes || !values))
        result = CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; result == CUDA_SUCCESS && i < count; i++)
        result = tell(values[i], attributes[i], address);
    return cuda_end(&call, result);
}
