#include "pools.h"
#include "depth.h"
#include "devices.h"
#include "graphs.h"
#include "real.h"
#include "reclaim.h"
#include "reserve.h"
#include "table.h"
#include "wrap.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_POOLS = 1024, GRANULE = 512, NOT_COUNTED = -1, SPECIAL_STREAMS = 2 };

/* An account is never freed, only used for another pool when this one is gone with all it had. */
struct pool {
    struct entry entry; /* in `known`, by handle, while the pool exists */
    struct reserve reserve;
    CUmemoryPool handle; /* NULL: the pool was destroyed */
    CUdevice device; /* NOT_COUNTED: it is of other memory, or another process's */
    bool ending; /* the driver is about to destroy it */
    _Atomic unsigned visits; /* of threads that ask the driver about it, though it may be another's */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t fork_once = PTHREAD_ONCE_INIT;
static struct table known;
static struct pool *_Atomic pools[MAX_POOLS];
static _Atomic int pool_count;

static void forget_after_fork(void)
{
    pthread_mutex_init(&lock, NULL);
    memset(&known, 0, sizeof known);
    for (int i = 0; i < MAX_POOLS; i++)
        atomic_store(&pools[i], NULL);
    atomic_store(&pool_count, 0);
}

static void watch_forks(void)
{
    pthread_atfork(NULL, NULL, forget_after_fork);
}

static struct pool *pool_at(int i)
{
    return i >= 0 && i < atomic_load_explicit(&pool_count, memory_order_acquire) ? atomic_load(&pools[i])
                                                                                 : NULL;
}

/* --- accounts ------------------------------------------------------------------------------------------- */

static bool vacant(struct pool *pool)
{
    return !pool->handle && !pool->ending && pool->reserve.claims == 0 && pool->reserve.live_bytes == 0
        && pool->reserve.charged_bytes == 0;
}

/* Called with the lock held. The number of an account for the handle; NOT_COUNTED when there are too many. */
static int add(CUmemoryPool handle, CUdevice device, int place)
{
    int i = 0, count = atomic_load(&pool_count);
    while (i < count && !vacant(pool_at(i)))
        i++;
    if (i == MAX_POOLS)
        return NOT_COUNTED;
    struct pool *pool = i < count ? pool_at(i) : calloc(1, sizeof *pool);
    if (!pool)
        return NOT_COUNTED;
    if (i < count)
        reserve_reset(&pool->reserve, place);
    else
        reserve_init(&pool->reserve, place);
    pool->handle = handle;
    pool->device = device;
    table_add(&known, &pool->entry, (uint64_t)(uintptr_t)handle);
    atomic_store(&pools[i], pool);
    if (i == count)
        atomic_store_explicit(&pool_count, i + 1, memory_order_release);
    return i;
}

static int number_of(const struct pool *pool)
{
    int i = 0;
    while (pool_at(i) != pool)
        i++;
    return i;
}

/* Called with the lock held. */
static struct pool *find(CUmemoryPool handle)
{
    return (struct pool *)table_find(&known, (uint64_t)(uintptr_t)handle);
}

/* There is a new pool of this handle; an older one was destroyed where we did not see it. */
static void make_known(CUmemoryPool handle, CUdevice device, bool located)
{
    if (!charging())
        return;
    int place = place_of_device(device);
    pthread_once(&fork_once, watch_forks);
    pthread_mutex_lock(&lock);
    struct pool *old = find(handle);
    if (old) {
        table_remove(&known, &old->entry);
        old->handle = NULL;
    }
    if (located)
        add(handle, device, place);
    pthread_mutex_unlock(&lock);
}

void pool_created(CUmemoryPool pool, const CUmemPoolProps *properties)
{
    CUdevice device = device_at(&properties->location);
    make_known(pool, device, device != NOT_COUNTED || properties->allocType != ALLOCATION_MANAGED);
}

void pool_imported(CUmemoryPool pool)
{
    make_known(pool, NOT_COUNTED, true);
}

/* The device of a pool that we did not see being made, or that is of managed memory without a place: that is
 * counted where it is first used. As is what a driver does not tell about, unless it is a device's own. */
static CUdevice ask_device(CUmemoryPool handle, CUdevice first_used)
{
    const struct real_cuda *real = real_cuda();
    CUmemLocation location;
    CUmemoryPool own;
    int kind, count;
    if (real->cuMemPoolGetAttribute
        && real->cuMemPoolGetAttribute(handle, POOL_LOCATION_TYPE, &location.type) == CUDA_SUCCESS
        && real->cuMemPoolGetAttribute(handle, POOL_LOCATION_ID, &location.id) == CUDA_SUCCESS
        && real->cuMemPoolGetAttribute(handle, POOL_ALLOCATION_TYPE, &kind) == CUDA_SUCCESS) {
        CUdevice device = device_at(&location);
        return device == NOT_COUNTED && kind == ALLOCATION_MANAGED ? first_used : device;
    }
    if (!real->cuDeviceGetDefaultMemPool || !real->cuDeviceGetCount
        || real->cuDeviceGetCount(&count) != CUDA_SUCCESS)
        return first_used;
    for (CUdevice device = 0; device < count; device++)
        if (real->cuDeviceGetDefaultMemPool(&own, device) == CUDA_SUCCESS && own == handle)
            return device;
    return first_used;
}

/* The number of the account of the pool that is allocated from; makes the device the pool's. */
static int account_of(struct pooled *pooled)
{
    CUdevice device = NOT_COUNTED;
    int place = NOT_COUNTED;
    pthread_once(&fork_once, watch_forks);
    pthread_mutex_lock(&lock);
    struct pool *pool = find(pooled->handle);
    pthread_mutex_unlock(&lock);
    if (!pool) {
        depth_enter();
        device = ask_device(pooled->handle, pooled->device);
        depth_leave();
        place = place_of_device(device);
    }
    pthread_mutex_lock(&lock);
    pool = find(pooled->handle);
    int number = pool ? number_of(pool) : add(pooled->handle, device, place);
    pooled->device = pool ? pool->device : device;
    pthread_mutex_unlock(&lock);
    return number;
}

/* --- what the driver says ------------------------------------------------------------------------------- */

/* 0 when it does not tell: then what is live is charged. */
static uint64_t reserved_bytes(CUmemoryPool handle)
{
    const struct real_cuda *real = real_cuda();
    cuuint64_t reserved = 0;
    if (!handle || !real || !real->cuMemPoolGetAttribute)
        return 0;
    depth_enter();
    if (real->cuMemPoolGetAttribute(handle, POOL_RESERVED_BYTES, &reserved) != CUDA_SUCCESS)
        reserved = 0;
    depth_leave();
    return reserved;
}

/* False when the pool has grown over what is charged, and that over the limit. */
static bool settle(struct pool *pool, bool anyway, const char *function)
{
    uint64_t changes = reserve_changes(&pool->reserve), reserved = reserved_bytes(pool->handle);
    return reserve_settle(&pool->reserve, changes, reserved, anyway, function);
}

static CUresult device_of_stream(const struct real_cuda *real, CUstream stream, CUdevice *device)
{
    CUcontext its = NULL, current = NULL;
    if (!real->cuCtxGetDevice)
        return CUDA_ERROR_NOT_INITIALIZED;
    if ((uintptr_t)stream <= SPECIAL_STREAMS || !real->cuStreamGetCtx || !real->cuCtxGetCurrent
        || !real->cuCtxPushCurrent_v2 || !real->cuCtxPopCurrent_v2
        || real->cuStreamGetCtx(stream, &its) != CUDA_SUCCESS || !its
        || real->cuCtxGetCurrent(&current) != CUDA_SUCCESS || its == current
        || real->cuCtxPushCurrent_v2(its) != CUDA_SUCCESS)
        return real->cuCtxGetDevice(device);
    CUresult result = real->cuCtxGetDevice(device);
    real->cuCtxPopCurrent_v2(&its);
    return result;
}

/* Where the allocation will come from; false when the driver had better be asked as it is. */
static bool find_source(struct pooled *pooled)
{
    const struct real_cuda *real = real_cuda();
    bool found = true;
    depth_enter();
    pooled->graph = graph_captured(pooled->stream, pooled->per_thread);
    if (device_of_stream(real, pooled->stream, &pooled->device) != CUDA_SUCCESS)
        found = false;
    else if (!pooled->graph && !pooled->handle && real->cuDeviceGetMemPool
             && real->cuDeviceGetMemPool(&pooled->handle, pooled->device) != CUDA_SUCCESS)
        pooled->handle = NULL;
    depth_leave();
    return found;
}

/* --- allocating ----------------------------------------------------------------------------------------- */

static CUresult claim(struct pooled *pooled)
{
    struct pool *pool = pool_at(pooled->pool);
    pooled->block = block_new(BLOCK_POOLED, pooled->pool, pooled->bytes);
    CUresult result = pooled->block ? reserve_claim(&pool->reserve, pooled->bytes, pooled->function)
                                    : CUDA_ERROR_OUT_OF_MEMORY;
    if (result != CUDA_SUCCESS && pooled->block && reclaimable(pool->reserve.place)) {
        reclaim(pool->reserve.place);
        result = reserve_claim(&pool->reserve, pooled->bytes, pooled->function);
    }
    if (result != CUDA_SUCCESS && pooled->block)
        block_free(pooled->block);
    return result;
}

/* Of a pool that has no account: by the piece, as if it were no pool. */
static CUresult claim_plain(struct pooled *pooled)
{
    int place = place_of_device(pooled->device);
    pooled->block = block_new(BLOCK_ADDRESS, place, pooled->bytes);
    CUresult result = pooled->block ? charge_reclaiming(place, CHARGE_DATA, pooled->bytes, pooled->function)
                                    : CUDA_ERROR_OUT_OF_MEMORY;
    if (result != CUDA_SUCCESS && pooled->block)
        block_free(pooled->block);
    return result;
}

CUresult pooled_begin(struct pooled *pooled, uint64_t bytes, CUmemoryPool pool, CUstream stream,
                      bool per_thread, const char *function)
{
    *pooled = (struct pooled){
        .handle = pool, .stream = stream, .per_thread = per_thread, .bytes = bytes, .function = function};
    if (!charging_bytes(bytes) || !find_source(pooled))
        return CUDA_SUCCESS;
    pooled->pool = pooled->handle ? account_of(pooled) : NOT_COUNTED;
    if (pooled->device == NOT_COUNTED)
        return CUDA_SUCCESS;
    if (pooled->graph) {
        pooled->as = POOLED_CAPTURED;
        return CUDA_SUCCESS;
    }
    pooled->bytes = (bytes + GRANULE - 1) / GRANULE * GRANULE;
    pooled->as = pooled->pool >= 0 ? POOLED_POOL : POOLED_PLAIN;
    CUresult result = pooled->pool >= 0 ? claim(pooled) : claim_plain(pooled);
    if (result != CUDA_SUCCESS)
        pooled->as = POOLED_NOT;
    return result;
}

/* The pool grew more than was claimed for it, and that does not fit. */
static CUresult give_back(struct pooled *pooled, struct pool *pool, CUdeviceptr *address)
{
    const struct real_cuda *real = real_cuda();
    struct quiet quiet = quiet_begin();
    struct block *block = block_take(BLOCK_POOLED, *address);
    __typeof__(real->cuMemFreeAsync) give =
        pooled->per_thread ? real->cuMemFreeAsync_ptsz : real->cuMemFreeAsync;
    if (block && give && give(*address, pooled->stream) == CUDA_SUCCESS) {
        reserve_freed(&pool->reserve, block_bytes(block));
        block_free(block);
        *address = 0;
    } else if (block) {
        block_add(block, *address);
    }
    if (real->cuMemPoolTrimTo && pooled->handle)
        real->cuMemPoolTrimTo(pooled->handle, 0);
    quiet_end(quiet);
    settle(pool, true, pooled->function);
    return *address ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult pooled_end(struct pooled *pooled, CUresult result, CUdeviceptr *address)
{
    bool given = result == CUDA_SUCCESS && address;
    struct pool *pool = pooled->as == POOLED_POOL ? pool_at(pooled->pool) : NULL;
    switch (pooled->as) {
    case POOLED_CAPTURED:
        if (given)
            graph_allocates(pooled->graph, pooled->device, pooled->bytes);
        return result;
    case POOLED_PLAIN:
        return wrap_settle(pooled->block, result, given ? *address : 0);
    case POOLED_POOL:
        break;
    default:
        return result;
    }
    if (given)
        block_add(pooled->block, *address);
    else
        block_free(pooled->block);
    reserve_claimed(&pool->reserve, pooled->bytes, given);
    bool fits = settle(pool, !given, pooled->function);
    return fits ? result : give_back(pooled, pool, address);
}

CUresult pooled_freed(struct block *block, CUresult result)
{
    if (result != CUDA_SUCCESS) {
        block_add(block, block_key(block));
        return result;
    }
    struct pool *pool = pool_at(block_device(block));
    reserve_freed(&pool->reserve, block_bytes(block));
    if (!pool->handle)
        settle(pool, true, NULL);
    block_free(block);
    return result;
}

/* --- pools as a whole ----------------------------------------------------------------------------------- */

/* From here to unvisit the pool's handle stays one: nobody lets the driver destroy it. */
static bool visit(struct pool *pool, int place)
{
    pthread_mutex_lock(&lock);
    bool there = pool->handle && !pool->ending && (pool->reserve.place == place || place == EVERY_PLACE);
    if (there)
        pool->visits++;
    pthread_mutex_unlock(&lock);
    return there;
}

static void unvisit(struct pool *pool)
{
    pool->visits--;
}

struct pool *pool_ending(CUmemoryPool handle)
{
    pthread_mutex_lock(&lock);
    struct pool *pool = find(handle);
    if (pool) { /* at once: the handle may be given out anew as soon as the driver has it back */
        table_remove(&known, &pool->entry);
        pool->ending = true;
    }
    pthread_mutex_unlock(&lock);
    while (pool && pool->visits)
        sched_yield(); /* they ask for a figure, or trim */
    return pool;
}

CUresult pool_ended(struct pool *pool, CUmemoryPool handle, CUresult result)
{
    if (!pool)
        return result;
    pthread_mutex_lock(&lock);
    if (result == CUDA_SUCCESS)
        pool->handle = NULL;
    else
        table_add(&known, &pool->entry, (uint64_t)(uintptr_t)handle);
    pthread_mutex_unlock(&lock);
    settle(pool, true, NULL);
    pool->ending = false;
    return result;
}

void pool_true_up(CUmemoryPool handle)
{
    pthread_mutex_lock(&lock);
    struct pool *pool = find(handle);
    pthread_mutex_unlock(&lock);
    if (pool && pool->device != NOT_COUNTED)
        settle(pool, true, NULL);
}

void pools_true_up(int place)
{
    for (int i = 0; i < atomic_load_explicit(&pool_count, memory_order_acquire); i++) {
        struct pool *pool = pool_at(i);
        if (!reserve_idle_bytes(&pool->reserve) || !visit(pool, place))
            continue;
        settle(pool, true, NULL);
        unvisit(pool);
    }
}

uint64_t pools_idle_bytes(int place)
{
    uint64_t bytes = 0;
    for (int i = 0; i < atomic_load_explicit(&pool_count, memory_order_acquire); i++)
        if (pool_at(i)->reserve.place == place)
            bytes += reserve_idle_bytes(&pool_at(i)->reserve);
    return bytes;
}

void pools_trim(int place)
{
    const struct real_cuda *real = real_cuda();
    for (int i = 0; i < atomic_load_explicit(&pool_count, memory_order_acquire); i++) {
        struct pool *pool = pool_at(i);
        if (!reserve_idle_bytes(&pool->reserve) || !visit(pool, place))
            continue;
        if (real && real->cuMemPoolTrimTo)
            real->cuMemPoolTrimTo(pool->handle, 0);
        settle(pool, true, NULL);
        unvisit(pool);
    }
}
