/* Simulated CUDA driver: what streams allocate from pools: at once, while what they free waits for their
 * work.
 */
#include "execution.h"
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

/* Freed, but its stream is not there yet. */
struct pool_pending {
    struct pool_pending *next;
    uint32_t row; /* of execution.h */
    uint64_t until, bytes; /* items of the stream that are to be done */
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

/* Of one stream; forgets what is done. */
static uint64_t pending_in(CUmemoryPool pool, uint32_t row, uint64_t *all)
{
    uint64_t own = 0;
    *all = 0;
    for (struct pool_pending **link = &pool->pending, *pending; (pending = *link);) {
        if (!pending->bytes || execution_done(pending->row, pending->until)) {
            *link = pending->next;
            free(pending);
            continue;
        }
        *all += pending->bytes;
        own += pending->row == row ? pending->bytes : 0;
        link = &pending->next;
    }
    return own;
}

uint64_t sim_pool_pending(CUmemoryPool pool)
{
    uint64_t all;
    pending_in(pool, 0, &all);
    return all;
}

static void await_stream(CUmemoryPool pool, uint32_t row, uint64_t bytes)
{
    uint64_t until = row ? execution_unfinished(row) : 0;
    struct pool_pending *last = pool->pending;
    if (until && last && last->row == row && last->until == until) {
        last->bytes += bytes;
        return;
    }
    struct pool_pending *pending = until ? malloc(sizeof *pending) : NULL;
    if (!pending)
        return;
    *pending = (struct pool_pending){last, row, until, bytes};
    pool->pending = pending;
}

/* Of a stream, or of any (0). Gives what is left to be had. */
static uint64_t reuse(CUmemoryPool pool, uint32_t row, uint64_t bytes)
{
    for (struct pool_pending *pending = pool->pending; pending && bytes; pending = pending->next)
        if (!row || pending->row == row) {
            uint64_t part = pending->bytes < bytes ? pending->bytes : bytes;
            pending->bytes -= part;
            bytes -= part;
        }
    return bytes;
}

static enum sim_memory_answer reserve(const struct cuda_call *call, CUmemoryPool pool, uint64_t bytes)
{
    uint64_t wanted = sim_pool_stepped(pool, bytes);
    enum sim_memory_answer answer = SIM_MEMORY_DONE;
    if (wanted <= pool->reserved)
        return answer;
    if (!pool->on_host)
        answer = sim_memory_take(pool->uuid, wanted - pool->reserved, capacity_bytes(call));
    if (answer == SIM_MEMORY_DONE)
        pool->reserved = wanted;
    return answer;
}

static CUresult grow(const struct cuda_call *call, CUmemoryPool pool, uint64_t bytes, uint32_t row)
{
    uint64_t all, own = pending_in(pool, row, &all);
    uint64_t reused = own < bytes ? own : bytes;
    enum sim_memory_answer answer = reserve(call, pool, pool->used + all - reused + bytes);
    if (answer == SIM_MEMORY_FULL && all > reused) {
        reused = all < bytes ? all : bytes;
        answer = reserve(call, pool, pool->used + all - reused + bytes);
    }
    if (answer != SIM_MEMORY_DONE)
        return answer == SIM_MEMORY_FULL ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_OPERATING_SYSTEM;
    if (reused)
        reuse(pool, 0, row ? reuse(pool, row, reused) : reused);
    pool->used += bytes;
    if (pool->used_high < pool->used)
        pool->used_high = pool->used;
    if (pool->reserved_high < pool->reserved)
        pool->reserved_high = pool->reserved;
    return CUDA_SUCCESS;
}

static CUresult cut(const struct cuda_call *call, CUmemoryPool pool, uint64_t bytes, CUdeviceptr *address,
                    uint32_t row)
{
    if (bytes == 0 || !address || pool->imported)
        return CUDA_ERROR_INVALID_VALUE;
    if (bytes > UINT64_MAX / 4)
        return CUDA_ERROR_OUT_OF_MEMORY;
    uint64_t rounded = (bytes + POOL_GRANULE - 1) / POOL_GRANULE * POOL_GRANULE;
    struct piece *piece = calloc(1, sizeof *piece);
    CUresult result = piece ? grow(call, pool, rounded, row) : CUDA_ERROR_OUT_OF_MEMORY;
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
    CUdevice device = -1;
    bool captured = false;
    CUresult result = cuda_begin_context(&call, function);
    pthread_mutex_lock(&sim_pools_lock);
    bool exists = !pool || sim_pool_known(pool);
    if (pool && exists)
        device = pool->device;
    pthread_mutex_unlock(&sim_pools_lock);
    if (result == CUDA_SUCCESS)
        result = sim_capture_active(stream, per_thread, &captured);
    if (result == CUDA_SUCCESS && captured)
        return cuda_end(&call,
                        address && exists ? sim_capture_allocation(stream, per_thread, device, bytes, address)
                                          : CUDA_ERROR_INVALID_VALUE);
    if (result == CUDA_SUCCESS && device < 0)
        result = sim_stream_device(stream, &device);
    cuda_end(&call, result);
    if (result != CUDA_SUCCESS)
        return result;
    result = cuda_begin_device(&call, function, device);
    if (result == CUDA_SUCCESS && !exists)
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS) {
        pthread_mutex_lock(&sim_pools_lock);
        sim_pools_discard();
        if (!pool)
            pool = sim_pool_current(&call, device);
        result = pool ? cut(&call, pool, bytes, address, sim_stream_row(stream, per_thread))
                      : CUDA_ERROR_OUT_OF_MEMORY;
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

static bool free_after(CUdeviceptr address, uint32_t row)
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
            await_stream(piece->pool, row, piece->bytes);
            sim_pool_discard_if_done(piece->pool);
        }
    }
    pthread_mutex_unlock(&sim_pools_lock);
    free(piece);
    return piece != NULL;
}

bool sim_pools_free(CUdeviceptr address)
{
    return free_after(address, 0);
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
    if (free_after(address, sim_stream_row(stream, per_thread)) || sim_graph_memory_free(address))
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
