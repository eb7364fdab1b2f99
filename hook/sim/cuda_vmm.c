/* Simulated CUDA driver: physical memory by handle, mapped at reserved addresses, shared between processes
 * and bound to multicast objects. What another process imports stays its exporter's.
 */
#include "cuda_call.h"
#include "memory.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define PAGE_BYTES (UINT64_C(2) << 20)

struct physical {
    char uuid[TEXT_BYTES];
    uint64_t bytes;
    bool taken; /* of the GPU, by this process */
    bool multicast;
    CUmemAllocationProp properties;
    unsigned users; /* handles, mappings and bindings */
};

struct handle {
    struct handle *next;
    CUmemGenericAllocationHandle value;
    struct physical *physical;
    unsigned references;
};

/* Where memory is seen: at an address, or at an offset of a multicast object. */
struct view {
    struct view *next;
    struct physical *physical, *multicast; /* multicast NULL: a mapping */
    uint64_t at, bytes;
};

struct exported {
    char uuid[TEXT_BYTES];
    uint64_t bytes;
    pid_t owner;
    CUmemGenericAllocationHandle value;
    CUmemAllocationProp properties;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct handle *handles;
static struct view *views;
static CUmemGenericAllocationHandle next_handle = 0x10000;
static CUdeviceptr next_address = 0x200000000000ULL;

static void unuse(struct physical *physical);

/* Called with the lock held, as are all static functions below. */
static void end_view(struct view **link)
{
    struct view *view = *link;
    *link = view->next;
    unuse(view->physical);
    free(view);
}

static void unuse(struct physical *physical)
{
    if (--physical->users)
        return;
    if (physical->taken)
        sim_memory_give(physical->uuid, physical->bytes, false);
    for (struct view **link = &views; *link;) {
        if ((*link)->multicast == physical) {
            end_view(link);
            link = &views; /* ending one may have ended others */
        } else {
            link = &(*link)->next;
        }
    }
    free(physical);
}

static struct handle *find(CUmemGenericAllocationHandle value)
{
    struct handle *handle = handles;
    while (handle && handle->value != value)
        handle = handle->next;
    return handle;
}

static CUresult new_handle(struct physical *physical, CUmemGenericAllocationHandle *value)
{
    struct handle *handle = calloc(1, sizeof *handle);
    if (!handle)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *handle = (struct handle){.next = handles, .value = next_handle++, .physical = physical, .references = 1};
    handles = handle;
    physical->users++;
    *value = handle->value;
    return CUDA_SUCCESS;
}

static CUresult new_view(struct physical *physical, struct physical *multicast, uint64_t at, uint64_t bytes)
{
    if (bytes == 0 || bytes % PAGE_BYTES || at % PAGE_BYTES)
        return CUDA_ERROR_INVALID_VALUE;
    for (struct view *view = views; view; view = view->next)
        if (view->multicast == multicast && at < view->at + view->bytes && view->at < at + bytes
            && (!multicast || strcmp(view->physical->uuid, physical->uuid) == 0))
            return CUDA_ERROR_INVALID_VALUE;
    struct view *view = calloc(1, sizeof *view);
    if (!view)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *view = (struct view){views, physical, multicast, at, bytes};
    views = view;
    physical->users++;
    return CUDA_SUCCESS;
}

static bool on_host(CUmemLocation location)
{
    return location.type >= MEMORY_LOCATION_HOST && location.type <= MEMORY_LOCATION_HOST_NUMA_CURRENT;
}

static CUdevice device_of(CUmemLocation location)
{
    /* DEVICE_LOCALITY_DOMAIN: the device's number is a byte of id */
    return location.type == MEMORY_LOCATION_DEVICE_DOMAIN ? (location.id & 0xFF)
        : on_host(location)                               ? 0
                                                          : location.id;
}

EXPORT CUresult cuMemCreate(CUmemGenericAllocationHandle *value, size_t bytes,
                            const CUmemAllocationProp *properties, unsigned long long flags)
{
    FAIL_IF_TOLD;
    (void)flags;
    if (!value || !properties || bytes == 0 || bytes % PAGE_BYTES
        || (properties->location.type != MEMORY_LOCATION_DEVICE
            && properties->location.type != MEMORY_LOCATION_DEVICE_DOMAIN && !on_host(properties->location)))
        return CUDA_ERROR_INVALID_VALUE;
    struct cuda_call call;
    CUresult result = cuda_begin_device(&call, __func__, device_of(properties->location));
    if (result != CUDA_SUCCESS)
        return cuda_end(&call, result);
    struct physical *physical = calloc(1, sizeof *physical);
    enum sim_memory_answer answer = on_host(properties->location)
        ? SIM_MEMORY_DONE
        : sim_memory_take(call.gpu->uuid, bytes, capacity_bytes(&call));
    if (!physical || answer != SIM_MEMORY_DONE) {
        free(physical);
        return cuda_end(&call, CUDA_ERROR_OUT_OF_MEMORY);
    }
    *physical = (struct physical){.bytes = bytes, .taken = !on_host(properties->location)};
    physical->properties = *properties;
    memcpy(physical->uuid, call.gpu->uuid, TEXT_BYTES);
    pthread_mutex_lock(&lock);
    result = new_handle(physical, value);
    pthread_mutex_unlock(&lock);
    return cuda_end(&call, result);
}

/* Begin a call, with the lock held. */
static CUresult begin(struct cuda_call *call, const char *function)
{
    CUresult result = cuda_begin(call, function);
    pthread_mutex_lock(&lock);
    return result;
}

static CUresult end(struct cuda_call *call, CUresult result)
{
    pthread_mutex_unlock(&lock);
    return cuda_end(call, result);
}

EXPORT CUresult cuMemRelease(CUmemGenericAllocationHandle value)
{
    struct cuda_call call;
    CUresult result = begin(&call, __func__);
    struct handle **link = &handles;
    while (*link && (*link)->value != value)
        link = &(*link)->next;
    struct handle *handle = *link;
    if (result == CUDA_SUCCESS && !handle)
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS && --handle->references == 0) {
        *link = handle->next;
        unuse(handle->physical);
        free(handle);
    }
    return end(&call, result);
}

EXPORT CUresult cuMemMap(CUdeviceptr address, size_t bytes, size_t offset, CUmemGenericAllocationHandle value,
                         unsigned long long flags)
{
    struct cuda_call call;
    CUresult result = begin(&call, __func__);
    struct handle *handle = find(value);
    if (result == CUDA_SUCCESS && (!handle || flags || offset || bytes > handle->physical->bytes))
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        result = new_view(handle->physical, NULL, address, bytes);
    return end(&call, result);
}

/* Mappings are taken away whole; a range may span several. */
EXPORT CUresult cuMemUnmap(CUdeviceptr address, size_t bytes)
{
    struct cuda_call call;
    CUresult result = begin(&call, __func__);
    uint64_t covered = 0;
    for (struct view *view = views; view; view = view->next) {
        if (view->multicast || view->at >= address + bytes || view->at + view->bytes <= address)
            continue;
        if (view->at < address || view->at + view->bytes > address + bytes)
            covered = UINT64_MAX / 2;
        else
            covered += view->bytes;
    }
    if (result == CUDA_SUCCESS && (covered != bytes || bytes == 0))
        result = CUDA_ERROR_INVALID_VALUE;
    for (struct view **link = &views; result == CUDA_SUCCESS && *link;) {
        if (!(*link)->multicast && (*link)->at >= address && (*link)->at < address + bytes) {
            end_view(link);
            link = &views;
        } else {
            link = &(*link)->next;
        }
    }
    return end(&call, result);
}

static struct view *mapped_at(uint64_t address)
{
    struct view *view = views;
    while (view && (view->multicast || address < view->at || address >= view->at + view->bytes))
        view = view->next;
    return view;
}

EXPORT CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *value, void *address)
{
    struct cuda_call call;
    CUresult result = begin(&call, __func__);
    struct view *view = mapped_at((uint64_t)(uintptr_t)address);
    if (result == CUDA_SUCCESS && (!view || !value))
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS) {
        struct handle *handle = handles;
        while (handle && handle->physical != view->physical)
            handle = handle->next;
        if (handle) {
            handle->references++;
            *value = handle->value;
        } else {
            result = new_handle(view->physical, value);
        }
    }
    return end(&call, result);
}

EXPORT CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *properties,
                                                       CUmemGenericAllocationHandle value)
{
    struct cuda_call call;
    CUresult result = begin(&call, __func__);
    struct handle *handle = find(value);
    if (result == CUDA_SUCCESS && (!handle || !properties))
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        *properties = handle->physical->properties;
    return end(&call, result);
}

EXPORT CUresult cuMemGetAllocationGranularity(size_t *bytes, const CUmemAllocationProp *properties,
                                              CUmemAllocationGranularity_flags flags)
{
    FAIL_IF_TOLD;
    (void)flags;
    if (!bytes || !properties)
        return CUDA_ERROR_INVALID_VALUE;
    *bytes = PAGE_BYTES;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemAddressReserve(CUdeviceptr *address, size_t bytes, size_t alignment, CUdeviceptr hint,
                                    unsigned long long flags)
{
    FAIL_IF_TOLD;
    (void)alignment, (void)hint, (void)flags;
    if (!address || bytes == 0 || bytes % PAGE_BYTES)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&lock);
    *address = next_address;
    next_address += bytes;
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemAddressFree(CUdeviceptr address, size_t bytes)
{
    FAIL_IF_TOLD;
    pthread_mutex_lock(&lock);
    CUresult result = address && bytes ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    for (struct view *view = views; view; view = view->next)
        if (!view->multicast && view->at >= address && view->at < address + bytes)
            result = CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_unlock(&lock);
    return result;
}

EXPORT CUresult cuMemSetAccess(CUdeviceptr address, size_t bytes, const CUmemAccessDesc *descriptions,
                               size_t count)
{
    FAIL_IF_TOLD;
    pthread_mutex_lock(&lock);
    CUresult result =
        descriptions && count && bytes && mapped_at(address) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_unlock(&lock);
    return result;
}

/* --- for other processes -------------------------------------------------------------------------------- */

EXPORT CUresult cuMemExportToShareableHandle(void *shareable, CUmemGenericAllocationHandle value,
                                             CUmemAllocationHandleType type, unsigned long long flags)
{
    (void)type, (void)flags;
    struct cuda_call call;
    CUresult result = begin(&call, __func__);
    struct handle *handle = find(value);
    if (result == CUDA_SUCCESS && (!handle || !shareable))
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS) {
        struct exported exported = {.bytes = handle->physical->bytes, .owner = getpid(), .value = value};
        exported.properties = handle->physical->properties;
        memcpy(exported.uuid, handle->physical->uuid, TEXT_BYTES);
        int fd = (int)syscall(SYS_memfd_create, "sim-memory", 0);
        if (fd < 0 || pwrite(fd, &exported, sizeof exported, 0) != (ssize_t)sizeof exported)
            result = CUDA_ERROR_OPERATING_SYSTEM;
        *(int *)shareable = fd;
    }
    return end(&call, result);
}

EXPORT CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *value, void *shareable,
                                               CUmemAllocationHandleType type)
{
    (void)type;
    struct cuda_call call;
    struct exported exported;
    CUresult result = begin(&call, __func__);
    if (result == CUDA_SUCCESS
        && (!value
            || pread((int)(intptr_t)shareable, &exported, sizeof exported, 0) != (ssize_t)sizeof exported))
        result = CUDA_ERROR_INVALID_VALUE;
    if (result != CUDA_SUCCESS)
        return end(&call, result);
    struct handle *own = exported.owner == getpid() ? find(exported.value) : NULL;
    struct physical *physical = own ? own->physical : calloc(1, sizeof *physical);
    if (!physical)
        return end(&call, CUDA_ERROR_OUT_OF_MEMORY);
    if (!own) {
        *physical = (struct physical){.bytes = exported.bytes, .properties = exported.properties};
        memcpy(physical->uuid, exported.uuid, TEXT_BYTES);
    }
    return end(&call, new_handle(physical, value));
}

/* --- multicast ------------------------------------------------------------------------------------------ */

EXPORT CUresult cuMulticastCreate(CUmemGenericAllocationHandle *value,
                                  const CUmulticastObjectProp *properties)
{
    FAIL_IF_TOLD;
    if (!value || !properties || properties->size == 0 || properties->size % PAGE_BYTES)
        return CUDA_ERROR_INVALID_VALUE;
    struct cuda_call call;
    CUresult result = begin(&call, __func__);
    struct physical *physical = result == CUDA_SUCCESS ? calloc(1, sizeof *physical) : NULL;
    if (physical) {
        *physical = (struct physical){.bytes = properties->size, .multicast = true};
        result = new_handle(physical, value);
    }
    return end(&call, result);
}

EXPORT CUresult cuMulticastAddDevice(CUmemGenericAllocationHandle value, CUdevice device)
{
    (void)device;
    struct cuda_call call;
    CUresult result = begin(&call, __func__);
    struct handle *handle = find(value);
    if (result == CUDA_SUCCESS && (!handle || !handle->physical->multicast))
        result = CUDA_ERROR_INVALID_VALUE;
    return end(&call, result);
}

static CUresult bind(const char *function, CUmemGenericAllocationHandle multicast, uint64_t at,
                     CUmemGenericAllocationHandle memory, uint64_t bytes)
{
    struct cuda_call call;
    CUresult result = begin(&call, function);
    struct handle *object = find(multicast), *handle = find(memory);
    if (result == CUDA_SUCCESS
        && (!object || !object->physical->multicast || !handle || handle->physical->multicast))
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        result = new_view(handle->physical, object->physical, at, bytes);
    return end(&call, result);
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
    CUresult result = begin(&call, function);
    struct handle *object = find(multicast);
    struct view *view = mapped_at(address);
    if (result == CUDA_SUCCESS && (!object || !object->physical->multicast || !view))
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        result = new_view(view->physical, object->physical, at, bytes);
    return end(&call, result);
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
    CUresult result = cuda_begin_device(&call, __func__, device);
    pthread_mutex_lock(&lock);
    struct handle *object = find(multicast);
    bool found = false;
    for (struct view **link = &views; result == CUDA_SUCCESS && object && *link;) {
        if ((*link)->multicast == object->physical && (*link)->at >= at && (*link)->at < at + bytes
            && strcmp((*link)->physical->uuid, call.gpu->uuid) == 0) {
            end_view(link);
            link = &views;
            found = true;
        } else {
            link = &(*link)->next;
        }
    }
    if (result == CUDA_SUCCESS && !found)
        result = CUDA_ERROR_INVALID_VALUE;
    return end(&call, result);
}
