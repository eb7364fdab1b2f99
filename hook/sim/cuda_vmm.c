/* Simulated CUDA driver: physical memory by handle, mapped at reserved addresses and shared between
 * processes. It lives until the last of them lets go of it; until then it is its exporter's, and then that of
 * whoever imported it first, as NVIDIA's kernel modules count it.
 */
#include "memory.h"
#include "vmm.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define PAGE_BYTES (UINT64_C(2) << 20)

struct exported {
    struct sim_sharing sharing;
    char uuid[TEXT_BYTES];
    uint64_t bytes;
    pid_t owner;
    CUmemGenericAllocationHandle value;
    CUmemAllocationProp properties;
    bool multicast;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct handle *handles;
struct view *vmm_views;
static CUmemGenericAllocationHandle next_handle = 0x10000;
static CUmemGenericAllocationHandle given_back; /* to be given out again; 0: none */
static CUdeviceptr next_address = 0x200000000000ULL;

static void unuse(struct physical *physical);

/* Called with the lock held, as are all static functions below. */
void vmm_end_view(struct view **link)
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
    if (physical->sharing) {
        sim_memory_let_go(physical->uuid, physical->sharing);
        munmap(physical->sharing, sizeof(struct exported));
        close(physical->fd);
    } else if (physical->taken) {
        sim_memory_give(physical->uuid, physical->bytes, false);
    }
    for (struct view **link = &vmm_views; *link;) {
        if ((*link)->multicast == physical) {
            vmm_end_view(link);
            link = &vmm_views; /* ending one may have ended others */
        } else {
            link = &(*link)->next;
        }
    }
    free(physical);
}

struct handle *vmm_find(CUmemGenericAllocationHandle value)
{
    struct handle *handle = handles;
    while (handle && handle->value != value)
        handle = handle->next;
    return handle;
}

CUresult vmm_new_handle(struct physical *physical, CUmemGenericAllocationHandle *value)
{
    struct handle *handle = calloc(1, sizeof *handle);
    if (!handle)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *handle = (struct handle){.next = handles, .physical = physical, .references = 1};
    handle->value = given_back ? given_back : next_handle++;
    given_back = 0;
    handles = handle;
    physical->users++;
    *value = handle->value;
    return CUDA_SUCCESS;
}

CUresult vmm_new_view(struct physical *physical, struct physical *multicast, uint64_t at, uint64_t bytes)
{
    if (bytes == 0 || bytes % PAGE_BYTES || at % PAGE_BYTES)
        return CUDA_ERROR_INVALID_VALUE;
    for (struct view *view = vmm_views; view; view = view->next)
        if (view->multicast == multicast && at < view->at + view->bytes && view->at < at + bytes
            && (!multicast || strcmp(view->physical->uuid, physical->uuid) == 0))
            return CUDA_ERROR_INVALID_VALUE;
    struct view *view = calloc(1, sizeof *view);
    if (!view)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *view = (struct view){vmm_views, physical, multicast, at, bytes};
    vmm_views = view;
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
            && properties->location.type != MEMORY_LOCATION_DEVICE_DOMAIN
            && properties->location.type != LOCATION_TO_COME && !on_host(properties->location)))
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
    result = vmm_new_handle(physical, value);
    pthread_mutex_unlock(&lock);
    return cuda_end(&call, result);
}

/* Begin a call, with the lock held. */
CUresult vmm_begin(struct cuda_call *call, const char *function)
{
    CUresult result = cuda_begin(call, function);
    pthread_mutex_lock(&lock);
    return result;
}

CUresult vmm_end(struct cuda_call *call, CUresult result)
{
    pthread_mutex_unlock(&lock);
    return cuda_end(call, result);
}

/* Where `cuMemReleased` is held, who has released a handle is kept from going on, and the handle is given out
 * again meanwhile. */
EXPORT CUresult cuMemRelease(CUmemGenericAllocationHandle value)
{
    static const char done[] = "cuMemReleased";
    struct cuda_call call;
    CUresult result = vmm_begin(&call, __func__);
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
        given_back = strcmp(call.node->held, done) == 0 ? value : 0;
    }
    result = vmm_end(&call, result);
    return result == CUDA_SUCCESS ? cuda_told_to_fail(done) : result;
}

EXPORT CUresult cuMemMap(CUdeviceptr address, size_t bytes, size_t offset, CUmemGenericAllocationHandle value,
                         unsigned long long flags)
{
    struct cuda_call call;
    CUresult result = vmm_begin(&call, __func__);
    struct handle *handle = vmm_find(value);
    if (result == CUDA_SUCCESS && (!handle || flags || offset || bytes > handle->physical->bytes))
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        result = vmm_new_view(handle->physical, NULL, address, bytes);
    return vmm_end(&call, result);
}

/* Mappings are taken away whole; a range may span several. */
EXPORT CUresult cuMemUnmap(CUdeviceptr address, size_t bytes)
{
    struct cuda_call call;
    CUresult result = vmm_begin(&call, __func__);
    uint64_t covered = 0;
    for (struct view *view = vmm_views; view; view = view->next) {
        if (view->multicast || view->at >= address + bytes || view->at + view->bytes <= address)
            continue;
        if (view->at < address || view->at + view->bytes > address + bytes)
            covered = UINT64_MAX / 2;
        else
            covered += view->bytes;
    }
    if (result == CUDA_SUCCESS && (covered != bytes || bytes == 0))
        result = CUDA_ERROR_INVALID_VALUE;
    for (struct view **link = &vmm_views; result == CUDA_SUCCESS && *link;) {
        if (!(*link)->multicast && (*link)->at >= address && (*link)->at < address + bytes) {
            vmm_end_view(link);
            link = &vmm_views;
        } else {
            link = &(*link)->next;
        }
    }
    return vmm_end(&call, result);
}

struct view *vmm_mapped_at(uint64_t address)
{
    struct view *view = vmm_views;
    while (view && (view->multicast || address < view->at || address >= view->at + view->bytes))
        view = view->next;
    return view;
}

EXPORT CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *value, void *address)
{
    struct cuda_call call;
    CUresult result = vmm_begin(&call, __func__);
    struct view *view = vmm_mapped_at((uint64_t)(uintptr_t)address);
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
            result = vmm_new_handle(view->physical, value);
        }
    }
    return vmm_end(&call, result);
}

EXPORT CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *properties,
                                                       CUmemGenericAllocationHandle value)
{
    struct cuda_call call;
    CUresult result = vmm_begin(&call, __func__);
    struct handle *handle = vmm_find(value);
    if (result == CUDA_SUCCESS && (!handle || !properties))
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        *properties = handle->physical->properties;
    return vmm_end(&call, result);
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
    for (struct view *view = vmm_views; view; view = view->next)
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
        descriptions && count && bytes && vmm_mapped_at(address) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_unlock(&lock);
    return result;
}

/* --- for other processes -------------------------------------------------------------------------------- */

/* Hold what the file stands for; takes the file. False, having closed it, if that is not possible. */
static bool share(struct physical *physical, int fd)
{
    void *mapped = mmap(NULL, sizeof(struct exported), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (mapped != MAP_FAILED && sim_memory_hold(mapped)) {
        physical->sharing = mapped;
        physical->fd = fd;
        return true;
    }
    if (mapped != MAP_FAILED)
        munmap(mapped, sizeof(struct exported));
    close(fd);
    return false;
}

/* Make the file that stands for memory of ours. */
static void stand_for(struct physical *physical, CUmemGenericAllocationHandle value)
{
    struct exported exported = {.bytes = physical->bytes, .owner = getpid(), .value = value};
    exported.sharing.bytes = physical->taken ? physical->bytes : 0;
    exported.properties = physical->properties;
    exported.multicast = physical->multicast;
    memcpy(exported.uuid, physical->uuid, TEXT_BYTES);
    int fd = (int)syscall(SYS_memfd_create, "sim-memory", 0);
    if (fd >= 0 && pwrite(fd, &exported, sizeof exported, 0) == (ssize_t)sizeof exported)
        share(physical, fd);
    else if (fd >= 0)
        close(fd);
}

EXPORT CUresult cuMemExportToShareableHandle(void *shareable, CUmemGenericAllocationHandle value,
                                             CUmemAllocationHandleType type, unsigned long long flags)
{
    (void)type, (void)flags;
    struct cuda_call call;
    CUresult result = vmm_begin(&call, __func__);
    struct handle *handle = vmm_find(value);
    if (result == CUDA_SUCCESS && (!handle || !shareable))
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS) {
        if (!handle->physical->sharing)
            stand_for(handle->physical, value);
        int fd = handle->physical->sharing ? dup(handle->physical->fd) : -1;
        if (fd < 0)
            result = CUDA_ERROR_OPERATING_SYSTEM;
        *(int *)shareable = fd;
    }
    return vmm_end(&call, result);
}

EXPORT CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *value, void *shareable,
                                               CUmemAllocationHandleType type)
{
    (void)type;
    struct cuda_call call;
    struct exported exported;
    CUresult result = vmm_begin(&call, __func__);
    if (result == CUDA_SUCCESS
        && (!value
            || pread((int)(intptr_t)shareable, &exported, sizeof exported, 0) != (ssize_t)sizeof exported))
        result = CUDA_ERROR_INVALID_VALUE;
    if (result != CUDA_SUCCESS)
        return vmm_end(&call, result);
    struct handle *own = exported.owner == getpid() ? vmm_find(exported.value) : NULL;
    struct physical *physical = own ? own->physical : calloc(1, sizeof *physical);
    if (!physical)
        return vmm_end(&call, CUDA_ERROR_OUT_OF_MEMORY);
    if (!own) {
        *physical = (struct physical){
            .bytes = exported.bytes, .properties = exported.properties, .multicast = exported.multicast};
        memcpy(physical->uuid, exported.uuid, TEXT_BYTES);
        int fd = dup((int)(intptr_t)shareable);
        if (fd < 0 || !share(physical, fd)) {
            free(physical);
            return vmm_end(&call, CUDA_ERROR_OPERATING_SYSTEM);
        }
    }
    return vmm_end(&call, vmm_new_handle(physical, value));
}
