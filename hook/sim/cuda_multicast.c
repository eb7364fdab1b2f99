/* Simulated CUDA driver: multicast objects, which show memory of several devices at one address. What a
 * process has bound to one ends with its own last handle and mapping of it, though other processes may have
 * more.
 */
#include "vmm.h"

#include <stdlib.h>
#include <string.h>

#define PAGE_BYTES (UINT64_C(2) << 20)

EXPORT CUresult cuMulticastCreate(CUmemGenericAllocationHandle *value,
                                  const CUmulticastObjectProp *properties)
{
    FAIL_IF_TOLD;
    if (!value || !properties || properties->size == 0 || properties->size % PAGE_BYTES)
        return CUDA_ERROR_INVALID_VALUE;
    struct cuda_call call;
    CUresult result = vmm_begin(&call, __func__);
    struct physical *physical = result == CUDA_SUCCESS ? calloc(1, sizeof *physical) : NULL;
    if (physical) {
        *physical = (struct physical){.bytes = properties->size, .multicast = true};
        result = vmm_new_handle(physical, value);
    }
    return vmm_end(&call, result);
}

EXPORT CUresult cuMulticastAddDevice(CUmemGenericAllocationHandle value, CUdevice device)
{
    (void)device;
    struct cuda_call call;
    CUresult result = vmm_begin(&call, __func__);
    struct handle *handle = vmm_find(value);
    if (result == CUDA_SUCCESS && (!handle || !handle->physical->multicast))
        result = CUDA_ERROR_INVALID_VALUE;
    return vmm_end(&call, result);
}

static CUresult bind(const char *function, CUmemGenericAllocationHandle multicast, uint64_t at,
                     CUmemGenericAllocationHandle memory, uint64_t bytes)
{
    struct cuda_call call;
    CUresult result = vmm_begin(&call, function);
    struct handle *object = vmm_find(multicast), *handle = vmm_find(memory);
    if (result == CUDA_SUCCESS
        && (!object || !object->physical->multicast || !handle || handle->physical->multicast))
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        result = vmm_new_view(handle->physical, object->physical, at, bytes);
    return vmm_end(&call, result);
}

EXPORT CUresult cuMulticastBindMem(CUmemGenericAllocationHandle multicast, size_t at,
                                   CUmemGenericAllocationHandle memory, size_t offset, size_t bytes,
                                   unsigned long long flags)
{
    (void)offset, (void)flags;
    return bind(__func__, multicast, at, memory, bytes);
}

EXPORT CUresult cuMulticastBindMem_v2(CUmemGenericAllocationHandle multicast, CUdevice device, size_t at,
                                      CUmemGenericAllocationHandle memory, size_t offset, size_t bytes,
                                      unsigned long long flags)
{
    (void)device, (void)offset, (void)flags;
    return bind(__func__, multicast, at, memory, bytes);
}

static CUresult bind_address(const char *function, CUmemGenericAllocationHandle multicast, uint64_t at,
                             CUdeviceptr address, uint64_t bytes)
{
    struct cuda_call call;
    CUresult result = vmm_begin(&call, function);
    struct handle *object = vmm_find(multicast);
    struct view *view = vmm_mapped_at(address);
    if (result == CUDA_SUCCESS && (!object || !object->physical->multicast || !view))
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        result = vmm_new_view(view->physical, object->physical, at, bytes);
    return vmm_end(&call, result);
}

EXPORT CUresult cuMulticastBindAddr(CUmemGenericAllocationHandle multicast, size_t at, CUdeviceptr address,
                                    size_t bytes, unsigned long long flags)
{
    (void)flags;
    return bind_address(__func__, multicast, at, address, bytes);
}

EXPORT CUresult cuMulticastBindAddr_v2(CUmemGenericAllocationHandle multicast, CUdevice device, size_t at,
                                       CUdeviceptr address, size_t bytes, unsigned long long flags)
{
    (void)device, (void)flags;
    return bind_address(__func__, multicast, at, address, bytes);
}

EXPORT CUresult cuMulticastUnbind(CUmemGenericAllocationHandle multicast, CUdevice device, size_t at,
                                  size_t bytes)
{
    struct cuda_call call;
    CUresult result = vmm_begin(&call, __func__);
    if (result == CUDA_SUCCESS && (device < 0 || device >= device_count()))
        result = CUDA_ERROR_INVALID_DEVICE;
    struct handle *object = vmm_find(multicast);
    bool found = false;
    for (struct view **link = &vmm_views; result == CUDA_SUCCESS && object && *link;) {
        if ((*link)->multicast == object->physical && (*link)->at >= at && (*link)->at < at + bytes
            && strcmp((*link)->physical->uuid, device_uuid(device)) == 0) {
            vmm_end_view(link);
            link = &vmm_views;
            found = true;
        } else {
            link = &(*link)->next;
        }
    }
    if (result == CUDA_SUCCESS && !found)
        result = CUDA_ERROR_INVALID_VALUE;
    result = vmm_end(&call, result);
    return result == CUDA_SUCCESS ? cuda_told_to_fail("cuMulticastUnbound") : result;
}
