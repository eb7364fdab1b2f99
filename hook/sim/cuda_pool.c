/* Simulated CUDA driver: stream-ordered memory and its pools. What a stream would do later is done at once.
 */
#include "cuda_call.h"
#include "graph_memory.h"
#include "memory.h"
#include "pools.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MIB (UINT64_C(1) << 20)

enum { BUCKETS = 4096, GRANULE = 512 };

enum { /* CUmemPool_attribute */
       RELEASE_THRESHOLD = 4,
       RESERVED_HIGH = 6,
       USED_HIGH = 8,
};

struct CUmemPoolHandle_st {
    struct CUmemPoolHandle_st *next;
    char uuid[TEXT_BYTES];
    CUdevice device;
    bool on_host, imported, destroyed;
    uint64_t step_bytes, threshold_bytes;
    uint64_t used, used_high, reserved, reserved_high;
};

struct piece {
    struct piece *next;
    CUdeviceptr address;
    uint64_t bytes;
    CUmemoryPool pool; /* NULL: imported, nothing of this process */
};

/* What another process needs to know of an exported pool, in the file that its handle is. */
struct exported_pool {
    char uuid[TEXT_BYTES];
    CUdevice device;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static CUmemoryPool pools;
static CUmemoryPool defaults[MAX_GPUS], currents[MAX_GPUS];
static struct piece *buckets[BUCKETS];
static CUdeviceptr next_address = 0x500000000000ULL;

/* As a CUDA context does not survive fork, neither do its pools. */
static void forget_after_fork(void)
{
    pthread_mutex_init(&lock, NULL);
    pools = NULL;
    memset(defaults, 0, sizeof defaults);
    memset(currents, 0, sizeof currents);
    memset(buckets, 0, sizeof buckets);
}

static __attribute__((constructor)) void watch_forks(void)
{
    pthread_atfork(NULL, NULL, forget_after_fork);
}

static struct piece **bucket_of(CUdeviceptr address)
{
    return &buckets[address / GRANULE % BUCKETS];
}

static uint64_t stepped(const struct CUmemPoolHandle_st *pool, uint64_t bytes)
{
    return (bytes + pool->step_bytes - 1) / pool->step_bytes * pool->step_bytes;
}

/* Called with the lock held. */
static CUmemoryPool new_pool(const struct cuda_call *call, CUdevice device)
{
    CUmemoryPool pool = calloc(1, sizeof *pool);
    if (!pool)
        return NULL;
    memcpy(pool->uuid, call->gpu->uuid, TEXT_BYTES);
    pool->device = device;
    pool->step_bytes = call->gpu->pool_step_mib ? call->gpu->pool_step_mib * MIB : GRANULE;
    pool->next = pools;
    pools = pool;
    return pool;
}

/* Called with the lock held. */
static CUmemoryPool default_pool(const struct cuda_call *call, CUdevice device)
{
    if (!defaults[device])
        currents[device] = defaults[device] = new_pool(call, device);
    return defaults[device];
}

static bool known(CUmemoryPool pool)
{
    CUmemoryPool at = pools;
    while (at && at != pool)
        at = at->next;
    return at && !at->destroyed;
}

/* Keep at least `kept` bytes of what is reserved. Called with the lock held. */
static void shrink(CUmemoryPool pool, uint64_t kept)
{
    uint64_t least = stepped(pool, pool->used);
    if (kept < least)
        kept = least;
    if (pool->reserved <= kept)
        return;
    if (!pool->on_host)
        sim_memory_give(pool->uuid, pool->reserved - kept, false);
    pool->reserved = kept;
}

/* Called with the lock held. */
static void discard_if_done(CUmemoryPool pool)
{
    if (!pool->destroyed || pool->used)
        return;
    shrink(pool, 0);
    CUmemoryPool *link = &pools;
    while (*link != pool)
        link = &(*link)->next;
    *link = pool->next;
    free(pool);
}

void sim_pools_synchronised(void)
{
    pthread_mutex_lock(&lock);
    for (CUmemoryPool pool = pools; pool; pool = pool->next)
        shrink(pool, pool->threshold_bytes);
    pthread_mutex_unlock(&lock);
}

/* --- allocating ----------------------------------------------------------------------------------------- */

/* Called with the lock held. */
static CUresult grow(const struct cuda_call *call, CUmemoryPool pool, uint64_t bytes)
{
    uint64_t wanted = stepped(pool, pool->used + bytes);
    if (wanted > pool->reserved && !pool->on_host) {
        enum sim_memory_answer answer =
            sim_memory_take(pool->uuid, wanted - pool->reserved, capacity_bytes(call));
        if (answer != SIM_MEMORY_DONE)
            return answer == SIM_MEMORY_FULL ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_OPERATING_SYSTEM;
    }
    if (wanted > pool->reserved)
        pool->reserved = wanted;
    pool->used += bytes;
    if (pool->used_high < pool->used)
        pool->used_high = pool->used;
    if (pool->reserved_high < pool->reserved)
        pool->reserved_high = pool->reserved;
    return CUDA_SUCCESS;
}

/* Called with the lock held. */
static CUresult cut(const struct cuda_call *call, CUmemoryPool pool, uint64_t bytes, CUdeviceptr *address)
{
    if (bytes == 0 || !address || !known(pool) || pool->imported)
        return CUDA_ERROR_INVALID_VALUE;
    if (bytes > UINT64_MAX / 4)
        return CUDA_ERROR_OUT_OF_MEMORY;
    uint64_t rounded = (bytes + GRANULE - 1) / GRANULE * GRANULE;
    struct piece *piece = calloc(1, sizeof *piece);
    CUresult result = piece ? grow(call, pool, rounded) : CUDA_ERROR_OUT_OF_MEMORY;
    if (result != CUDA_SUCCESS) {
        free(piece);
        return result;
    }
    *piece = (struct piece){.address = next_address, .bytes = rounded, .pool = pool};
    next_address += rounded;
    struct piece **bucket = bucket_of(piece->address);
    piece->next = *bucket;
    *bucket = piece;
    *address = piece->address;
    return CUDA_SUCCESS;
}

static CUresult allocate(const char *function, CUdeviceptr *address, uint64_t bytes, CUmemoryPool pool,
                         CUstream stream, bool per_thread)
{
    struct cuda_call call;
    CUdevice device;
    bool captured = false;
    CUresult result = cuda_begin_context(&call, function);
    if (result == CUDA_SUCCESS)
        result = sim_capture_active(stream, per_thread, &captured);
    if (result == CUDA_SUCCESS && captured)
        return cuda_end(&call,
                        address ? sim_capture_allocation(stream, per_thread, bytes, address)
                                : CUDA_ERROR_INVALID_VALUE);
    if (result == CUDA_SUCCESS)
        result = sim_stream_device(stream, &device);
    cuda_end(&call, result);
    if (result != CUDA_SUCCESS)
        return result;
    result = cuda_begin_device(&call, function, device);
    if (result == CUDA_SUCCESS) {
        pthread_mutex_lock(&lock);
        if (!pool && default_pool(&call, device))
            pool = currents[device];
        result = cut(&call, pool, bytes, address);
        pthread_mutex_unlock(&lock);
    }
    return cuda_end(&call, result);
}

EXPORT CUresult cuMemAllocAsync(CUdeviceptr *address, size_t bytes, CUstream stream)
{
    return allocate(__func__, address, bytes, NULL, stream, false);
}

EXPORT CUresult cuMemAllocAsync_ptsz(CUdeviceptr *address, size_t bytes, CUstream stream)
{
    return allocate(__func__, address, bytes, NULL, stream, true);
}

EXPORT CUresult cuMemAllocFromPoolAsync(CUdeviceptr *address, size_t bytes, CUmemoryPool pool,
                                        CUstream stream)
{
    FAIL_IF_TOLD;
    return pool ? allocate(__func__, address, bytes, pool, stream, false) : CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *address, size_t bytes, CUmemoryPool pool,
                                             CUstream stream)
{
    FAIL_IF_TOLD;
    return pool ? allocate(__func__, address, bytes, pool, stream, true) : CUDA_ERROR_INVALID_VALUE;
}

bool sim_pools_free(CUdeviceptr address)
{
    pthread_mutex_lock(&lock);
    struct piece **link = bucket_of(address);
    while (*link && (*link)->address != address)
        link = &(*link)->next;
    struct piece *piece = *link;
    if (piece) {
        *link = piece->next;
        if (piece->pool) {
            piece->pool->used -= piece->bytes;
            discard_if_done(piece->pool);
        }
    }
    pthread_mutex_unlock(&lock);
    free(piece);
    return piece != NULL;
}

static CUresult free_on(const char *function, CUdeviceptr address, CUstream stream, bool per_thread)
{
    struct cuda_call call;
    bool captured = false;
    CUresult result = cuda_begin_context(&call, function);
    if (result == CUDA_SUCCESS)
        result = sim_capture_active(stream, per_thread, &captured);
    cuda_end(&call, result);
    if (result != CUDA_SUCCESS)
        return result;
    if (captured)
        return sim_capture_free(stream, per_thread, address);
    if (sim_pools_free(address) || sim_graph_memory_free(address))
        return CUDA_SUCCESS;
    return cuMemFree_v2(address);
}

EXPORT CUresult cuMemFreeAsync(CUdeviceptr address, CUstream stream)
{
    return free_on(__func__, address, stream, false);
}

EXPORT CUresult cuMemFreeAsync_ptsz(CUdeviceptr address, CUstream stream)
{
    return free_on(__func__, address, stream, true);
}

/* --- pools ---------------------------------------------------------------------------------------------- */

EXPORT CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *properties)
{
    FAIL_IF_TOLD;
    if (!pool || !properties)
        return CUDA_ERROR_INVALID_VALUE;
    bool on_host = properties->location.type >= MEMORY_LOCATION_HOST
        && properties->location.type <= MEMORY_LOCATION_HOST_NUMA_CURRENT;
    if (properties->location.type != MEMORY_LOCATION_DEVICE && !on_host)
        return CUDA_ERROR_INVALID_VALUE;
    struct cuda_call call;
    CUdevice device = on_host ? 0 : properties->location.id;
    CUresult result = cuda_begin_device(&call, __func__, device);
    if (result == CUDA_SUCCESS) {
        pthread_mutex_lock(&lock);
        *pool = new_pool(&call, device);
        if (*pool)
            (*pool)->on_host = on_host;
        result = *pool ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
        pthread_mutex_unlock(&lock);
    }
    return cuda_end(&call, result);
}

/* Begin a call about a pool, with the lock held. */
static CUresult begin_pool(struct cuda_call *call, const char *function, CUmemoryPool pool)
{
    CUresult result = cuda_begin(call, function);
    pthread_mutex_lock(&lock);
    return result == CUDA_SUCCESS && !known(pool) ? CUDA_ERROR_INVALID_VALUE : result;
}

static CUresult end_pool(struct cuda_call *call, CUresult result)
{
    pthread_mutex_unlock(&lock);
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
        discard_if_done(pool);
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
    if (result == CUDA_SUCCESS && (!value || pool->imported))
        result = CUDA_ERROR_INVALID_VALUE;
    cuuint64_t *figure = value;
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
        pthread_mutex_lock(&lock);
        *pool = default_pool(&call, device);
        if (*pool && current)
            *pool = currents[device];
        result = *pool ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
        pthread_mutex_unlock(&lock);
    }
    return cuda_end(&call, result);
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
        pthread_mutex_lock(&lock);
        if (!known(pool) || pool->device != device || !default_pool(&call, device))
            result = CUDA_ERROR_INVALID_VALUE;
        else
            currents[device] = pool;
        pthread_mutex_unlock(&lock);
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
        pthread_mutex_lock(&lock);
        *pool = new_pool(&call, exported.device);
        if (*pool)
            (*pool)->imported = true;
        result = *pool ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
        pthread_mutex_unlock(&lock);
    }
    return cuda_end(&call, result);
}

EXPORT CUresult cuMemPoolExportPointer(CUmemPoolPtrExportData *data, CUdeviceptr address)
{
    FAIL_IF_TOLD;
    pthread_mutex_lock(&lock);
    struct piece *piece = *bucket_of(address);
    while (piece && piece->address != address)
        piece = piece->next;
    if (piece && data)
        memcpy(data, &piece->bytes, sizeof piece->bytes);
    pthread_mutex_unlock(&lock);
    return piece && data ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuMemPoolImportPointer(CUdeviceptr *address, CUmemoryPool pool, CUmemPoolPtrExportData *data)
{
    struct cuda_call call;
    CUresult result = begin_pool(&call, __func__, pool);
    if (result == CUDA_SUCCESS && (!address || !data || !pool->imported))
        result = CUDA_ERROR_INVALID_VALUE;
    struct piece *piece = result == CUDA_SUCCESS ? calloc(1, sizeof *piece) : NULL;
    if (piece) {
        memcpy(&piece->bytes, data, sizeof piece->bytes);
        *address = piece->address = next_address;
        next_address += piece->bytes;
        struct piece **bucket = bucket_of(piece->address);
        piece->next = *bucket;
        *bucket = piece;
    }
    return end_pool(&call, result);
}
