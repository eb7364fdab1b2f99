/* Physical memory by handle: charged when made, until neither a handle nor a mapping is left. */
#include "devices.h"
#include "guesses.h"
#include "loose.h"
#include "replaceable.h"
#include "vmm.h"
#include "wrap.h"

EXPORT CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t bytes,
                            const CUmemAllocationProp *properties, unsigned long long flags)
{
    const struct real_cuda *real = real_cuda();
    struct physical *physical;
    if (!real || !real->cuMemCreate)
        return CUDA_ERROR_NOT_INITIALIZED;
    CUresult result = physical_begin(&physical, bytes, properties, "cuMemCreate");
    if (result != CUDA_SUCCESS)
        return result;
    result = CALL(cuMemCreate, handle, bytes, properties, flags);
    return physical_made(physical, result, result == CUDA_SUCCESS && handle ? *handle : 0);
}

EXPORT CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
    const struct real_cuda *real = real_cuda();
    if (!real || !real->cuMemRelease)
        return CUDA_ERROR_NOT_INITIALIZED;
    struct handle *used = handle_use(handle);
    CUresult result = CALL(cuMemRelease, handle);
    handle_used(used, result == CUDA_SUCCESS ? 2 : 1);
    return result;
}

EXPORT CUresult cuMemMap(CUdeviceptr address, size_t bytes, size_t offset,
                         CUmemGenericAllocationHandle handle, unsigned long long flags)
{
    REPLACEABLE_ENTRY;
    const struct real_cuda *real = real_cuda();
    if (!real || !real->cuMemMap)
        return CUDA_ERROR_NOT_INITIALIZED;
    struct handle *used = handle_use(handle);
    CUresult result = CALL(cuMemMap, address, bytes, offset, handle, flags);
    if (result == CUDA_SUCCESS)
        physical_mapped(address, bytes, used);
    handle_used(used, 1);
    return result;
}

EXPORT CUresult cuMemUnmap(CUdeviceptr address, size_t bytes)
{
    REPLACEABLE_ENTRY;
    const struct real_cuda *real = real_cuda();
    if (!real || !real->cuMemUnmap)
        return CUDA_ERROR_NOT_INITIALIZED;
    struct mapping *mappings = mappings_ending(address, bytes);
    CUresult result = CALL(cuMemUnmap, address, bytes);
    return mappings_ended(mappings, result);
}

EXPORT CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *address)
{
    const struct real_cuda *real = real_cuda();
    if (!real || !real->cuMemRetainAllocationHandle)
        return CUDA_ERROR_NOT_INITIALIZED;
    CUresult result = CALL(cuMemRetainAllocationHandle, handle, address);
    if (result == CUDA_SUCCESS && handle)
        physical_known(*handle, (uint64_t)(uintptr_t)address);
    return result;
}

EXPORT CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *shareable,
                                               CUmemAllocationHandleType type)
{
    const struct real_cuda *real = real_cuda();
    if (!real || !real->cuMemImportFromShareableHandle)
        return CUDA_ERROR_NOT_INITIALIZED;
    CUresult result = CALL(cuMemImportFromShareableHandle, handle, shareable, type);
    if (result == CUDA_SUCCESS && handle) {
        CUmemAllocationProp properties;
        physical_known(*handle, 0);
        /* What was imported before is ours to account for if its exporter has let go of it. */
        if (charging() && real->cuMemGetAllocationPropertiesFromHandle
            && CALL(cuMemGetAllocationPropertiesFromHandle, &properties, *handle) == CUDA_SUCCESS)
            guesses_reconcile(place_of_device(device_at(&properties.location)), true);
    }
    return result;
}

EXPORT CUresult cuMulticastCreate(CUmemGenericAllocationHandle *handle,
                                  const CUmulticastObjectProp *properties)
{
    const struct real_cuda *real = real_cuda();
    if (!real || !real->cuMulticastCreate)
        return CUDA_ERROR_NOT_INITIALIZED;
    CUresult result = CALL(cuMulticastCreate, handle, properties);
    if (result == CUDA_SUCCESS && handle)
        physical_known(*handle, 0); /* an object without memory, that can be mapped */
    return result;
}

struct bound {
    struct handle *multicast, *memory;
};

static struct bound bind_begin(CUmemGenericAllocationHandle multicast, CUmemGenericAllocationHandle memory)
{
    return (struct bound){handle_use(multicast), memory ? handle_use(memory) : NULL};
}

static CUresult bind_end(struct bound bound, size_t at, size_t bytes, CUdeviceptr address, CUresult result)
{
    if (result == CUDA_SUCCESS)
        physical_bound(bound.multicast, at, bytes, bound.memory, address);
    handle_used(bound.memory, 1);
    handle_used(bound.multicast, 1);
    return result;
}

#define BIND(symbol, handle, address, ...)                                                                   \
    const struct real_cuda *real = real_cuda();                                                              \
    if (!real || !real->symbol)                                                                              \
        return CUDA_ERROR_NOT_INITIALIZED;                                                                   \
    struct bound bound = bind_begin(multicast, handle);                                                      \
    return bind_end(bound, at, bytes, address, CALL(symbol, __VA_ARGS__))

EXPORT CUresult cuMulticastBindMem(CUmemGenericAllocationHandle multicast, size_t at,
                                   CUmemGenericAllocationHandle memory, size_t offset, size_t bytes,
                                   unsigned long long flags)
{
    BIND(cuMulticastBindMem, memory, 0, multicast, at, memory, offset, bytes, flags);
}

EXPORT CUresult cuMulticastBindMem_v2(CUmemGenericAllocationHandle multicast, CUdevice device, size_t at,
                                      CUmemGenericAllocationHandle memory, size_t offset, size_t bytes,
                                      unsigned long long flags)
{
    BIND(cuMulticastBindMem_v2, memory, 0, multicast, device, at, memory, offset, bytes, flags);
}

EXPORT CUresult cuMulticastBindAddr(CUmemGenericAllocationHandle multicast, size_t at, CUdeviceptr address,
                                    size_t bytes, unsigned long long flags)
{
    BIND(cuMulticastBindAddr, 0, address, multicast, at, address, bytes, flags);
}

EXPORT CUresult cuMulticastBindAddr_v2(CUmemGenericAllocationHandle multicast, CUdevice device, size_t at,
                                       CUdeviceptr address, size_t bytes, unsigned long long flags)
{
    BIND(cuMulticastBindAddr_v2, 0, address, multicast, device, at, address, bytes, flags);
}

EXPORT CUresult cuMulticastUnbind(CUmemGenericAllocationHandle multicast, CUdevice device, size_t at,
                                  size_t bytes)
{
    const struct real_cuda *real = real_cuda();
    if (!real || !real->cuMulticastUnbind)
        return CUDA_ERROR_NOT_INITIALIZED;
    uint64_t until = loose_load(&physical_bindings);
    CUresult result = CALL(cuMulticastUnbind, multicast, device, at, bytes);
    if (result == CUDA_SUCCESS)
        physical_unbound(until, multicast, device, at, bytes);
    return result;
}
