/* Simulated CUDA driver: what streams allocate from pools. What a stream would do later is done at once. */
#include "graph_memory.h"
#include "memory.h"
#include "pools.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { BUCKETS = 4096 };

struct piece {
    struct piece *next;
    CUdeviceptr address;
    uint64_t bytes;
    CUmemoryPool pool; /* NULL: imported, nothing of this process */
};

static struct piece *buckets[BUCKETS];
static CUdeviceptr next_address = 0x500000000000ULL;

/* As a CUDA context does not survive fork, neither does what was allocated in it. */
static void forget_after_fork(void)
{
    memset(buckets, 0, sizeof buckets);
}

static __attribute__((constructor)) void watch_forks(void)
{
    pthread_atfork(NULL, NULL, forget_after_fork);
}

static struct piece **bucket_of(CUdeviceptr address)
{
    return &buckets[address / POOL_GRANULE % BUCKETS];
}

/* Called with the lock held, as are the two after it. */
static void add(struct piece *piece, uint64_t bytes, CUmemoryPool pool)
{
    *piece = (struct piece){.address = next_address, .bytes = bytes, .pool = pool};
    next_address += bytes;
    struct piece **bucket = bucket_of(piece->address);
    piece->next = *bucket;
    *bucket = piece;
}

static CUresult grow(const struct cuda_call *call, CUmemoryPool pool, uint64_t bytes)
{
    uint64_t wanted = sim_pool_stepped(pool, pool->used + bytes);
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

static CUresult cut(const struct cuda_call *call, CUmemoryPool pool, uint64_t bytes, CUdeviceptr *address)
{
    if (bytes == 0 || !address || pool->imported)
        return CUDA_ERROR_INVALID_VALUE;
    if (bytes > UINT64_MAX / 4)
        return CUDA_ERROR_OUT_OF_MEMORY;
    uint64_t rounded = (bytes + POOL_GRANULE - 1) / POOL_GRANULE * POOL_GRANULE;
    struct piece *piece = calloc(1, sizeof *piece);
    CUresult result = piece ? grow(call, pool, rounded) : CUDA_ERROR_OUT_OF_MEMORY;
    if (result != CUDA_SUCCESS) {
        free(piece);
        return result;
    }
    add(piece, rounded, pool);
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
    pthread_mutex_lock(&sim_pools_lock);
    bool exists = !pool || sim_pool_known(pool);
    if (pool && exists)
        device = pool->device;
    pthread_mutex_unlock(&sim_pools_lock);
    result = cuda_begin_device(&call, function, device);
    if (result == CUDA_SUCCESS && !exists)
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS) {
        pthread_mutex_lock(&sim_pools_lock);
        if (!pool)
            pool = sim_pool_current(&call, device);
        result = pool ? cut(&call, pool, bytes, address) : CUDA_ERROR_OUT_OF_MEMORY;
        pthread_mutex_unlock(&sim_pools_lock);
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
    pthread_mutex_lock(&sim_pools_lock);
    struct piece **link = bucket_of(address);
    while (*link && (*link)->address != address)
        link = &(*link)->next;
    struct piece *piece = *link;
    if (piece) {
        *link = piece->next;
        if (piece->pool) {
            piece->pool->used -= piece->bytes;
            sim_pool_discard_if_done(piece->pool);
        }
    }
    pthread_mutex_unlock(&sim_pools_lock);
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

/* --- for other processes -------------------------------------------------------------------------------- */

EXPORT CUresult cuMemPoolExportPointer(CUmemPoolPtrExportData *data, CUdeviceptr address)
{
    FAIL_IF_TOLD;
    pthread_mutex_lock(&sim_pools_lock);
    struct piece *piece = *bucket_of(address);
    while (piece && piece->address != address)
        piece = piece->next;
    if (piece && data)
        memcpy(data, &piece->bytes, sizeof piece->bytes);
    pthread_mutex_unlock(&sim_pools_lock);
    return piece && data ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuMemPoolImportPointer(CUdeviceptr *address, CUmemoryPool pool, CUmemPoolPtrExportData *data)
{
    struct cuda_call call;
    CUresult result = cuda_begin(&call, __func__);
    uint64_t bytes;
    pthread_mutex_lock(&sim_pools_lock);
    if (result == CUDA_SUCCESS && (!address || !data || !sim_pool_known(pool) || !pool->imported))
        result = CUDA_ERROR_INVALID_VALUE;
    struct piece *piece = result == CUDA_SUCCESS ? calloc(1, sizeof *piece) : NULL;
    if (piece) {
        memcpy(&bytes, data, sizeof bytes);
        add(piece, bytes, NULL);
        *address = piece->address;
    }
    pthread_mutex_unlock(&sim_pools_lock);
    return cuda_end(&call, result);
}
