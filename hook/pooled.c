/* Stream-ordered allocations, one at a time: where each comes from, what is charged before it, and what it
 * came to. */
#include "depth.h"
#include "devices.h"
#include "graphs.h"
#include "guesses.h"
#include "looks.h"
#include "loose.h"
#include "pool_accounts.h"
#include "pools.h"
#include "real.h"
#include "reclaim.h"
#include "streams.h"
#include "wrap.h"

#include <sched.h>

enum { GRANULE = 512, SPECIAL_STREAMS = 2, LEGACY = 3, TRIES = 32, PATIENCE = 1024 };

/* Threads have numbers of their own: the handle of one may be given to a later one. */
static _Thread_local uint64_t thread_number __attribute__((tls_model("initial-exec")));
static _Atomic uint64_t threads;

uint64_t stream_number(CUstream stream, bool per_thread)
{
    if ((uintptr_t)stream > SPECIAL_STREAMS)
        return (uintptr_t)stream; /* even */
    if ((uintptr_t)stream != SPECIAL_STREAMS && (stream || !per_thread))
        return LEGACY;
    if (!thread_number)
        thread_number = LEGACY + 2 * ++threads;
    return thread_number;
}

static CUresult device_of_stream(const struct real_cuda *real, CUstream stream, CUdevice *device)
{
    if (!real->cuCtxGetDevice)
        return CUDA_ERROR_NOT_SUPPORTED;
    bool its_own = (uintptr_t)stream > SPECIAL_STREAMS;
    CUcontext entered = its_own ? stream_enter(stream) : NULL;
    CUresult result = real->cuCtxGetDevice(device);
    if (its_own && !entered && result == CUDA_SUCCESS) /* the current context's, which is another one */
        result = CUDA_ERROR_INVALID_HANDLE;
    stream_leave(entered);
    return result;
}

/* Where the allocation will come from: what cannot be told is not given. */
static CUresult find_source(struct pooled *pooled)
{
    const struct real_cuda *real = real_cuda();
    depth_enter();
    pooled->graph = graph_captured(pooled->stream, pooled->per_thread);
    CUresult result = device_of_stream(real, pooled->stream, &pooled->device);
    if (result == CUDA_SUCCESS && !pooled->graph && !pooled->handle && real->cuDeviceGetMemPool
        && real->cuDeviceGetMemPool(&pooled->handle, pooled->device) != CUDA_SUCCESS)
        pooled->handle = NULL;
    depth_leave();
    return result;
}

/* Where the stream is, or was: other threads' streams are waited for as well. */
static void reclaim_in(int place, CUstream stream)
{
    depth_enter();
    CUcontext entered = stream_enter(stream);
    depth_leave();
    looks_call_ended(place); /* all that is charged is there */
    reclaim(place);
    looks_call_begins(place);
    depth_enter();
    stream_leave(entered);
    depth_leave();
}

static CUresult claim(struct pooled *pooled)
{
    struct reserve *reserve = &pool_at(pooled->pool)->reserve;
    pooled->block = block_new(BLOCK_POOLED, pooled->pool, pooled->bytes);
    if (!pooled->block)
        return CUDA_ERROR_OUT_OF_MEMORY;
    int place = reserve->place;
    guesses_settle(place, false);
    looks_call_begins(place);
    CUresult result =
        reserve_claim(reserve, pooled->in, pooled->bytes, NULL); /* not refused yet, see charge_reclaiming */
    bool again = result != CUDA_SUCCESS && reclaimable(place, pooled->bytes);
    for (int tries = TRIES; again && tries; tries--) {
        uint64_t freed = reserve_freed_ever(reserve);
        reclaim_in(place, pooled->stream);
        result = reserve_claim(reserve, pooled->in, pooled->bytes, NULL);
        again = result != CUDA_SUCCESS && reserve_freed_ever(reserve) != freed; /* by others, meanwhile */
    }
    if (result == CUDA_SUCCESS)
        return result;
    looks_call_ended(place);
    block_free(pooled->block);
    return charge_refused(place, pooled->bytes, pooled->function);
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

static CUresult begin(struct pooled *pooled, uint64_t bytes, CUmemoryPool pool, CUstream stream,
                      bool per_thread, const char *function)
{
    *pooled = (struct pooled){
        .handle = pool, .stream = stream, .per_thread = per_thread, .bytes = bytes, .function = function};
    if (!charging_bytes(bytes))
        return CUDA_SUCCESS;
    uint64_t ends = pool_ends();
    CUresult result = find_source(pooled);
    if (result != CUDA_SUCCESS)
        return device_unknown(result);
    pooled->pool = pooled->handle ? pool_account_of(pooled->handle, &pooled->device, ends) : POOL_NOT_COUNTED;
    if (pooled->pool == POOL_GONE)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (pooled->device == POOL_NOT_COUNTED)
        return CUDA_SUCCESS;
    if (pooled->graph) {
        pooled->as = POOLED_CAPTURED;
        return CUDA_SUCCESS;
    }
    if (pooled->pool == NO_POOL_ACCOUNT) /* what the driver reserves for it could not be counted */
        return CUDA_ERROR_OUT_OF_MEMORY;
    pooled->bytes = (bytes + GRANULE - 1) / GRANULE * GRANULE;
    pooled->in = stream_number(stream, per_thread);
    pooled->as = pooled->pool >= 0 ? POOLED_POOL : POOLED_PLAIN;
    /* What is current may end meanwhile, and another pool have its account, or its handle. */
    pooled->stays =
        !pool && pooled->pool >= 0 && pool_visit(pool_at(pooled->pool), EVERY_PLACE, pooled->handle);
    if (!pool && pooled->pool >= 0 && !pooled->stays)
        pooled->pool = POOL_GONE;
    result = pooled->pool == POOL_GONE ? CUDA_ERROR_OUT_OF_MEMORY
        : pooled->pool >= 0            ? claim(pooled)
                                       : claim_plain(pooled);
    if (result == CUDA_SUCCESS)
        return result;
    pooled->as = POOLED_NOT;
    if (pooled->stays)
        pool_unvisit(pool_at(pooled->pool));
    pooled->stays = false;
    return result;
}

/* Whether what is current was gone before it could be charged; or may be, as the claim took longer than
 * anybody waits who destroys it. */
static bool has_ended(struct pooled *pooled)
{
    struct pool *pool = pooled->stays ? pool_at(pooled->pool) : NULL;
    if (pool && pool_visit(pool, EVERY_PLACE, pooled->handle)) {
        pool_unvisit(pool);
    } else if (pool) {
        pooled_end(pooled, CUDA_ERROR_INVALID_VALUE, NULL);
        *pooled = (struct pooled){.pool = POOL_GONE};
    }
    return pooled->pool == POOL_GONE;
}

CUresult pooled_begin(struct pooled *pooled, uint64_t bytes, CUmemoryPool pool, CUstream stream,
                      bool per_thread, const char *function)
{
    CUresult result = begin(pooled, bytes, pool, stream, per_thread, function);
    for (int patience = PATIENCE; has_ended(pooled) && patience; patience--) {
        sched_yield();
        result = begin(pooled, bytes, pool, stream, per_thread, function);
    }
    return pooled->pool == POOL_GONE ? CUDA_ERROR_OUT_OF_MEMORY : result;
}

/* The pool grew more than was claimed for it, and that does not fit. */
static CUresult give_back(struct pooled *pooled, struct pool *pool, CUdeviceptr *address)
{
    const struct real_cuda *real = real_cuda();
    struct quiet quiet = quiet_begin();
    struct block *block = block_take(BLOCK_POOLED, *address, 0);
    __typeof__(real->cuMemFreeAsync) give =
        pooled->per_thread ? real->cuMemFreeAsync_ptsz : real->cuMemFreeAsync;
    if (block && give && give(*address, pooled->stream) == CUDA_SUCCESS) {
        reserve_freed(&pool->reserve, pooled->in, block_bytes(block));
        block_free(block);
        *address = 0;
    } else if (block) {
        block_add(block, *address, 0);
    }
    if (real->cuMemPoolTrimTo && pooled->handle)
        real->cuMemPoolTrimTo(pooled->handle, 0);
    quiet_end(quiet);
    pool_settle(pool, true);
    return *address ? CUDA_SUCCESS : charge_refused(pool->reserve.place, pooled->bytes, pooled->function);
}

CUresult pooled_end(struct pooled *pooled, CUresult result, CUdeviceptr *address)
{
    bool given = result == CUDA_SUCCESS && address;
    struct pool *pool = pooled->as == POOLED_POOL ? pool_at(pooled->pool) : NULL;
    switch (pooled->as) {
    case POOLED_CAPTURED:
        if (given)
            graph_allocates(pooled->graph, pooled->device, pooled->bytes, *address, true);
        return result;
    case POOLED_PLAIN:
        return wrap_settle(pooled->block, result, given ? *address : 0);
    case POOLED_POOL:
        break;
    default:
        return result;
    }
    int place = pool->reserve.place;
    if (given)
        block_add(pooled->block, *address, 0);
    else
        block_free(pooled->block);
    reserve_claimed(&pool->reserve, pooled->bytes, given);
    /* Without an address nothing was asked, and the driver may be destroying the pool: not a word to it. */
    if (!address && !pool->handle)
        pool_settle(pool, true);
    if (address && !pool_settle(pool, !given))
        result = give_back(pooled, pool, address);
    if (pooled->stays)
        pool_unvisit(pool);
    looks_call_ended(place);
    return result;
}

void freeing_begin(struct freeing *freeing, uint64_t in, CUgraph captured, CUdeviceptr address)
{
    *freeing = (struct freeing){.address = address, .in = in, .into = captured};
    if (!captured && (freeing->block = wrap_freeing(BLOCK_ADDRESS, address)))
        return;
    if (!captured && (freeing->pooled = block_take(BLOCK_POOLED, address, 0)))
        looks_call_begins(pool_at(block_device(freeing->pooled))->reserve.place);
    freeing->of_graph = !freeing->pooled && address && graphs_allocate();
    if (freeing->of_graph && !captured)
        graph_freeing(address);
}

static CUresult freed(struct block *block, uint64_t in, CUresult result)
{
    struct pool *pool = pool_at(block_device(block));
    int place = pool->reserve.place;
    if (result != CUDA_SUCCESS) {
        block_add(block, block_key(block), 0);
    } else {
        reserve_freed(&pool->reserve, in, block_bytes(block));
        if (!pool->handle || atomic_load(&pool->ended))
            pool_look(pool);
        block_free(block);
    }
    looks_call_ended(place);
    return result;
}

CUresult freeing_end(const struct freeing *freeing, CUresult result)
{
    if (freeing->of_graph)
        graph_freed(freeing->into, freeing->address, result == CUDA_SUCCESS);
    return freeing->pooled ? freed(freeing->pooled, freeing->in, result) : wrap_freed(freeing->block, result);
}
