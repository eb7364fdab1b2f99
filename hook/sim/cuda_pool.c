/* Simulated CUDA driver: memory pools, the devices' own and those of programs. */
#include "memory.h"
#include "pools.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MIB (UINT64_C(1) << 20)

enum { /* CUmemPool_attribute */
       RELEASE_THRESHOLD = 4,
       RESERVED_HIGH = 6,
       USED_HIGH = 8,
};

enum { HOST_POOLS = 2 }; /* one of each kind that the host has of its own */

/* What another process needs to know of an exported pool, in the file that its handle is. */
struct exported_pool {
    char uuid[TEXT_BYTES];
    CUdevice device;
};

pthread_mutex_t sim_pools_lock = PTHREAD_MUTEX_INITIALIZER;
static CUmemoryPool pools;
static CUmemoryPool defaults[MAX_GPUS], currents[MAX_GPUS], host_defaults[HOST_POOLS];

/* As a CUDA context does not survive fork, neither do its pools. */
static void forget_after_fork(void)
{
    pthread_mutex_init(&sim_pools_lock, NULL);
    pools = NULL;
    memset(defaults, 0, sizeof defaults);
    memset(currents, 0, sizeof currents);
    memset(host_defaults, 0, sizeof host_defaults);
}

static __attribute__((constructor)) void watch_forks(void)
{
    pthread_atfork(NULL, NULL, forget_after_fork);
}

uint64_t sim_pool_stepped(const struct CUmemPoolHandle_st *pool, uint64_t bytes)
{
    return (bytes + pool->step_bytes - 1) / pool->step_bytes * pool->step_bytes;
}

static bool is_host(int location)
{
    return location >= MEMORY_LOCATION_HOST && location <= MEMORY_LOCATION_HOST_NUMA_CURRENT;
}

/* Called with the lock held. */
static CUmemoryPool new_pool(const struct cuda_call *call, CUdevice device, CUmemLocation location, int kind)
{
    CUmemoryPool pool = calloc(1, sizeof *pool);
    if (!pool)
        return NULL;
    memcpy(pool->uuid, call->gpu->uuid, TEXT_BYTES);
    pool->device = device;
    pool->location = location;
    pool->kind = kind;
    pool->on_host = is_host(location.type);
    pool->step_bytes = call->gpu->pool_step_mib ? call->gpu->pool_step_mib * MIB : POOL_GRANULE;
    pool->next = pools;
    pools = pool;
    return pool;
}

/* Called with the lock held. */
static CUmemoryPool default_pool(const struct cuda_call *call, CUdevice device)
{
    CUmemLocation location = {MEMORY_LOCATION_DEVICE, device};
    if (!defaults[device])
        currents[device] = defaults[device] = new_pool(call, device, location, ALLOCATION_PINNED);
    return defaults[device];
}

CUmemoryPool sim_pool_current(const struct cuda_call *call, CUdevice device)
{
    return default_pool(call, device) ? currents[device] : NULL;
}

bool sim_pool_known(CUmemoryPool pool)
{
    CUmemoryPool at = pools;
    while (at && at != pool)
        at = at->next;
    return at && !at->destroyed;
}

/* Keep at least `kept` bytes of what is reserved. Called with the lock held. */
static void shrink(CUmemoryPool pool, uint64_t kept)
{
    uint64_t least = sim_pool_stepped(pool, pool->used + sim_pool_pending(pool));
    if (kept < least)
        kept = least;
    if (pool->reserved <= kept)
        return;
    if (!pool->on_host)
        sim_memory_give(pool->uuid, pool->reserved - kept, false);
    pool->reserved = kept;
}

void sim_pool_discard_if_done(CUmemoryPool pool)
{
    if (!pool->destroyed || pool->used || sim_pool_pending(pool))
        return;
    shrink(pool, 0);
    CUmemoryPool *link = &pools;
    while (*link != pool)
        link = &(*link)->next;
    *link = pool->next;
    free(pool);
}

void sim_pools_discard(void)
{
    for (CUmemoryPool pool = pools, next; pool; pool = next) {
        next = pool->next;
        sim_pool_discard_if_done(pool);
    }
}

void sim_pools_synchronised(void)
{
    pthread_mutex_lock(&sim_pools_lock);
    for (CUmemoryPool pool = pools; pool; pool = pool->next)
        shrink(pool, pool->destroyed ? 0 : pool->threshold_bytes);
    sim_pools_discard();
    pthread_mutex_unlock(&sim_pools_lock);
}

/* --- pools ---------------------------------------------------------------------------------------------- */

EXPORT CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *properties)
{
    FAIL_IF_TOLD;
    if (!pool || !properties)
        return CUDA_ERROR_INVALID_VALUE;
    int place = properties->location.type;
    bool nowhere = place == MEMORY_LOCATION_NONE && properties->allocType == ALLOCATION_MANAGED;
    bool on_device = place == MEMORY_LOCATION_DEVICE || place == LOCATION_TO_COME;
    if (!on_device && !is_host(place) && !nowhere)
        return CUDA_ERROR_INVALID_VALUE;
    struct cuda_call call;
    CUdevice device = on_device ? properties->location.id : 0;
    CUresult result = cuda_begin_device(&call, __func__, device);
    if (result == CUDA_SUCCESS) {
        pthread_mutex_lock(&sim_pools_lock);
        *pool = new_pool(&call, device, properties->location, properties->allocType);
        result = *pool ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
        pthread_mutex_unlock(&sim_pools_lock);
    }
    return cuda_end(&call, result);
}

/* Begin a call about a pool, with the lock held. */
static CUresult begin_pool(struct cuda_call *call, const char *function, CUmemoryPool pool)
{
    CUresult result = cuda_begin(call, function);
    pthread_mutex_lock(&sim_pools_lock);
    return result == CUDA_SUCCESS && !sim_pool_known(pool) ? CUDA_ERROR_INVALID_VALUE : result;
}

static CUresult end_pool(struct cuda_call *call, CUresult result)
{
    pthread_mutex_unlock(&sim_pools_lock);
    return cuda_end(call, result);
}

EXPORT CUresult cuMemPoolDestroy(CUmemoryPool pool)
{
    struct cuda_call call;
    CUresult result = begin_pool(&call, __func__, pool);
    if (result == CUDA_SUCCESS && pool == defaults[pool->device])
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS) {
        if (currents[pool->device] == pool)
            currents[pool->device] = defaults[pool->device];
        pool->destroyed = true;
        shrink(pool, 0);
        sim_pool_discard_if_done(pool);
    }
    return end_pool(&call, result);
}

EXPORT CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t kept)
{
    struct cuda_call call;
    CUresult result = begin_pool(&call, __func__, pool);
    if (result == CUDA_SUCCESS)
        shrink(pool, kept);
    return end_pool(&call, result);
}

EXPORT CUresult cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void *value)
{
    struct cuda_call call;
    CUresult result = begin_pool(&call, __func__, pool);
    if (result == CUDA_SUCCESS && (!value || attribute != RELEASE_THRESHOLD))
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        pool->threshold_bytes = *(cuuint64_t *)value;
    return end_pool(&call, result);
}

EXPORT CUresult cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void *value)
{
    struct cuda_call call;
    CUresult result = begin_pool(&call, __func__, pool);
    if (result == CUDA_SUCCESS
        && (!value || pool->imported
            || (attribute >= POOL_ALLOCATION_TYPE && call.node->cuda_version < POOLS_TOLD_SINCE)))
        result = CUDA_ERROR_INVALID_VALUE;
    cuuint64_t *figure = value;
    int *choice = value;
    if (result == CUDA_SUCCESS) {
        switch (attribute) {
        case RELEASE_THRESHOLD:
            *figure = pool->threshold_bytes;
            break;
        case POOL_RESERVED_BYTES:
            *figure = pool->reserved;
            break;
        case RESERVED_HIGH:
            *figure = pool->reserved_high;
            break;
        case POOL_USED_BYTES:
            *figure = pool->used;
            break;
        case USED_HIGH:
            *figure = pool->used_high;
            break;
        case POOL_ALLOCATION_TYPE:
            *choice = pool->kind;
            break;
        case POOL_LOCATION_ID:
            *choice = pool->location.id;
            break;
        case POOL_LOCATION_TYPE:
            *choice = pool->location.type;
            break;
        default:
            result = CUDA_ERROR_INVALID_VALUE;
        }
    }
    return end_pool(&call, result);
}

static CUresult pool_of(const char *function, CUmemoryPool *pool, CUdevice device, bool current)
{
    struct cuda_call call;
    CUresult result = cuda_begin_device(&call, function, device);
    if (result == CUDA_SUCCESS && !pool)
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS) {
        pthread_mutex_lock(&sim_pools_lock);
        *pool = current ? sim_pool_current(&call, device) : default_pool(&call, device);
        result = *pool ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
        pthread_mutex_unlock(&sim_pools_lock);
    }
    return cuda_end(&call, result);
}

/* The pools of the host, one for all its places; or of a device. */
static CUresult pool_at(const char *function, CUmemoryPool *pool, const CUmemLocation *location, int kind,
                        bool current)
{
    struct cuda_call call;
    if (!pool || !location || (kind != ALLOCATION_PINNED && kind != ALLOCATION_MANAGED))
        return CUDA_ERROR_INVALID_VALUE;
    if (location->type == MEMORY_LOCATION_DEVICE && kind == ALLOCATION_PINNED)
        return pool_of(function, pool, location->id, current);
    if (!is_host(location->type))
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = cuda_begin_device(&call, function, 0);
    if (result == CUDA_SUCCESS) {
        pthread_mutex_lock(&sim_pools_lock);
        CUmemoryPool *own = &host_defaults[kind == ALLOCATION_MANAGED];
        if (!*own)
            *own = new_pool(&call, 0, *location, kind);
        *pool = *own;
        result = *pool ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
        pthread_mutex_unlock(&sim_pools_lock);
    }
    return cuda_end(&call, result);
}

EXPORT CUresult cuMemGetDefaultMemPool(CUmemoryPool *pool, CUmemLocation *location, CUmemAllocationType kind)
{
    FAIL_IF_TOLD;
    return pool_at(__func__, pool, location, kind, false);
}

EXPORT CUresult cuMemGetMemPool(CUmemoryPool *pool, CUmemLocation *location, CUmemAllocationType kind)
{
    FAIL_IF_TOLD;
    return pool_at(__func__, pool, location, kind, true);
}

EXPORT CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *pool, CUdevice device)
{
    return pool_of(__func__, pool, device, false);
}

EXPORT CUresult cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice device)
{
    return pool_of(__func__, pool, device, true);
}

EXPORT CUresult cuDeviceSetMemPool(CUdevice device, CUmemoryPool pool)
{
    struct cuda_call call;
    CUresult result = cuda_begin_device(&call, __func__, device);
    if (result == CUDA_SUCCESS) {
        pthread_mutex_lock(&sim_pools_lock);
        if (!sim_pool_known(pool) || pool->device != device || !default_pool(&call, device))
            result = CUDA_ERROR_INVALID_VALUE;
        else
            currents[device] = pool;
        pthread_mutex_unlock(&sim_pools_lock);
    }
    return cuda_end(&call, result);
}

/* --- for other processes -------------------------------------------------------------------------------- */

EXPORT CUresult cuMemPoolExportToShareableHandle(void *handle, CUmemoryPool pool,
                                                 CUmemAllocationHandleType type, unsigned long long flags)
{
    (void)type, (void)flags;
    struct cuda_call call;
    CUresult result = begin_pool(&call, __func__, pool);
    if (result == CUDA_SUCCESS && !handle)
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS) {
        struct exported_pool exported = {.device = pool->device};
        memcpy(exported.uuid, pool->uuid, TEXT_BYTES);
        int fd = (int)syscall(SYS_memfd_create, "sim-pool", 0);
        result = fd >= 0 && pwrite(fd, &exported, sizeof exported, 0) == (ssize_t)sizeof exported
            ? CUDA_SUCCESS
            : CUDA_ERROR_OPERATING_SYSTEM;
        *(int *)handle = fd;
    }
    return end_pool(&call, result);
}

EXPORT CUresult cuMemPoolImportFromShareableHandle(CUmemoryPool *pool, void *handle,
                                                   CUmemAllocationHandleType type, unsigned long long flags)
{
    FAIL_IF_TOLD;
    (void)type, (void)flags;
    struct exported_pool exported;
    if (!pool || pread((int)(intptr_t)handle, &exported, sizeof exported, 0) != (ssize_t)sizeof exported)
        return CUDA_ERROR_INVALID_VALUE;
    struct cuda_call call;
    CUresult result = cuda_begin_device(&call, __func__, exported.device);
    if (result == CUDA_SUCCESS) {
        pthread_mutex_lock(&sim_pools_lock);
        CUmemLocation location = {MEMORY_LOCATION_DEVICE, exported.device};
        *pool = new_pool(&call, exported.device, location, ALLOCATION_PINNED);
        if (*pool)
            (*pool)->imported = true;
        result = *pool ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
        pthread_mutex_unlock(&sim_pools_lock);
    }
    return cuda_end(&call, result);
}
