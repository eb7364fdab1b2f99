#include "pools.h"
#include "await.h"
#include "contexts.h"
#include "devices.h"
#include "loose.h"
#include "pool_accounts.h"
#include "pool_driver.h"
#include "real.h"
#include "reclaim.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_POOLS = 1024 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t fork_once = PTHREAD_ONCE_INIT;
static struct table known;
static struct pool *_Atomic pools[MAX_POOLS];
static _Atomic int pool_count;
static uint64_t ends;

static void forget_after_fork(void)
{
    pthread_mutex_init(&lock, NULL);
    memset(&known, 0, sizeof known);
    for (int i = 0; i < MAX_POOLS; i++)
        loose_store(&pools[i], NULL);
    loose_store(&pool_count, 0);
    await_forget();
}

static void watch_forks(void)
{
    pthread_atfork(NULL, NULL, forget_after_fork);
}

struct pool *pool_at(int i)
{
    return i >= 0 && i < atomic_load_explicit(&pool_count, memory_order_acquire) ? loose_load(&pools[i])
                                                                                 : NULL;
}

/* --- accounts ------------------------------------------------------------------------------------------- */

/* Called with the lock held. */
static bool vacant(struct pool *pool)
{
    return !pool->handle && !pool->ending && !pool->visits && reserve_unused(&pool->reserve);
}

/* Called with the lock held. The number of an account for the handle; NO_POOL_ACCOUNT when there are too
 * many. */
static int add(CUmemoryPool handle, CUdevice device, int place)
{
    int i = 0, count = loose_load(&pool_count);
    while (i < count && !vacant(pool_at(i)))
        i++;
    if (i == MAX_POOLS)
        return NO_POOL_ACCOUNT;
    struct pool *pool = i < count ? pool_at(i) : calloc(1, sizeof *pool);
    if (!pool)
        return NO_POOL_ACCOUNT;
    if (i < count)
        reserve_reset(&pool->reserve, place);
    else
        reserve_init(&pool->reserve, place);
    pool->handle = handle;
    pool->device = device;
    table_add(&known, &pool->entry, (uint64_t)(uintptr_t)handle);
    loose_store(&pools[i], pool);
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
        loose_store(&old->ended, false);
    }
    if (located)
        add(handle, device, place);
    pthread_mutex_unlock(&lock);
}

void pool_created(CUmemoryPool pool, const CUmemPoolProps *properties)
{
    CUdevice device = device_at(&properties->location);
    make_known(pool, device,
               device != POOL_NOT_COUNTED
                   || !pool_may_be_anywhere(&properties->location, properties->allocType));
}

void pool_imported(CUmemoryPool pool)
{
    make_known(pool, POOL_NOT_COUNTED, true);
}

uint64_t pool_ends(void)
{
    pthread_mutex_lock(&lock);
    uint64_t count = ends;
    pthread_mutex_unlock(&lock);
    return count;
}

int pool_account_of(CUmemoryPool handle, CUdevice *device, uint64_t ends_before)
{
    CUdevice its = POOL_NOT_COUNTED;
    int place = POOL_NOT_COUNTED;
    pthread_once(&fork_once, watch_forks);
    pthread_mutex_lock(&lock);
    struct pool *pool = find(handle);
    bool gone = !pool && ends != ends_before;
    pthread_mutex_unlock(&lock);
    if (gone)
        return POOL_GONE;
    if (!pool) {
        its = pool_ask_device(handle, *device);
        place = place_of_device(its);
    }
    pthread_mutex_lock(&lock);
    pool = find(handle);
    int number = pool ? number_of(pool) : ends == ends_before ? add(handle, its, place) : POOL_GONE;
    *device = pool ? pool->device : its;
    pthread_mutex_unlock(&lock);
    return number;
}

/* --- what is charged ------------------------------------------------------------------------------------ */

bool pool_settle(struct pool *pool, bool anyway)
{
    enum settled settled;
    do {
        cuuint64_t reserved;
        uint64_t changes = reserve_changes(&pool->reserve);
        if (!pool_ask_reserved(pool->handle, &reserved))
            return true; /* it may be as it was: what is charged, and what is live is within that */
        settled = reserve_settle(&pool->reserve, changes, reserved, anyway);
    } while (settled == ASK_AGAIN);
    return settled == SETTLED;
}

/* --- pools as a whole ----------------------------------------------------------------------------------- */

bool pool_visit(struct pool *pool, int place, CUmemoryPool handle)
{
    pthread_mutex_lock(&lock);
    bool there = pool->handle && !pool->ending && (!handle || pool->handle == handle)
        && (pool->reserve.place == place || place == EVERY_PLACE);
    if (there)
        loose_store(&pool->visits, loose_load(&pool->visits) + 1);
    pthread_mutex_unlock(&lock);
    return there;
}

void pool_unvisit(struct pool *pool)
{
    CUmemoryPool over = NULL;
    pthread_mutex_lock(&lock);
    unsigned left = loose_load(&pool->visits) - 1;
    loose_store(&pool->visits, left);
    if (!left && loose_load(&pool->ended) && reserve_unused(&pool->reserve)) {
        over = pool->handle;
        ends++;
        table_remove(&known, &pool->entry);
        pool->handle = NULL;
        loose_store(&pool->ended, false);
    }
    pthread_mutex_unlock(&lock);
    if (!over)
        return;
    struct quiet quiet = quiet_begin();
    real_cuda()->cuMemPoolDestroy(over);
    quiet_end(quiet);
}

/* Who is cancelled is so afterwards: whoever destroys the pool waits for visits to end. */
static void look_at(struct pool *pool, bool unused_goes)
{
    int before;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
    if (unused_goes || loose_load(&pool->ended))
        pool_trim(pool->handle);
    pool_settle(pool, true);
    pool_unvisit(pool);
    pthread_setcancelstate(before, NULL);
}

void pool_look(struct pool *pool)
{
    if (pool_visit(pool, EVERY_PLACE, NULL))
        look_at(pool, false);
    else
        pool_settle(pool, true);
}

struct pool *pool_ending(CUmemoryPool handle)
{
    pthread_mutex_lock(&lock);
    struct pool *pool = find(handle);
    ends++;
    if (pool) /* still known: the driver may refuse, and others allocate from it meanwhile */
        pool->ending = !loose_load(&pool->ended);
    pthread_mutex_unlock(&lock);
    /* They ask for a figure, trim, or allocate; or were cancelled in the midst of that. */
    for (int patience = POOL_PATIENCE; pool && pool->visits && patience; patience--)
        sched_yield();
    if (pool)
        pool_trim(handle);
    return pool;
}

bool pool_lingers(struct pool *pool)
{
    cuuint64_t reserved;
    if (!pool || (pool_ask_reserved(pool->handle, &reserved) ? !reserved : reserve_unused(&pool->reserve)))
        return false;
    bool lingers = pool_step_down(pool->handle, pool->device);
    if (lingers) {
        pthread_mutex_lock(&lock);
        loose_store(&pool->ended, true);
        pool->ending = false;
        pthread_mutex_unlock(&lock);
        pool_look(pool);
    }
    return lingers;
}

CUresult pool_ended(struct pool *pool, CUresult result)
{
    if (!pool)
        return result;
    pthread_mutex_lock(&lock);
    ends++;
    if (result == CUDA_SUCCESS && pool->handle) { /* or a new pool has got that already */
        table_remove(&known, &pool->entry);
        pool->handle = NULL;
    }
    pthread_mutex_unlock(&lock);
    pool_settle(pool, true);
    pthread_mutex_lock(&lock);
    pool->ending = false; /* from here on another pool may have the account */
    pthread_mutex_unlock(&lock);
    return result;
}

void pool_true_up(CUmemoryPool handle)
{
    pthread_mutex_lock(&lock);
    struct pool *pool = find(handle);
    pthread_mutex_unlock(&lock);
    if (pool)
        pool_settle(pool, true);
}

void pools_true_up(int place)
{
    for (int i = 0; i < atomic_load_explicit(&pool_count, memory_order_acquire); i++) {
        struct pool *pool = pool_at(i);
        if (!reserve_idle_bytes(&pool->reserve) || !pool_visit(pool, place, NULL))
            continue;
        look_at(pool, false);
    }
}

void pools_stream_ends(uint64_t stream)
{
    for (int i = 0; i < atomic_load_explicit(&pool_count, memory_order_acquire); i++)
        reserve_stream_ends(&pool_at(i)->reserve, stream);
}

uint64_t pools_idle_bytes(int place)
{
    uint64_t bytes = 0;
    for (int i = 0; i < atomic_load_explicit(&pool_count, memory_order_acquire); i++)
        if (atomic_load_explicit(&pool_at(i)->reserve.place, memory_order_relaxed) == place)
            bytes += reserve_idle_bytes(&pool_at(i)->reserve);
    return bytes;
}

/* A driver may keep what a stream has freed until somebody has waited for it. Once for all pools, as streams
 * may be busy for long; of those beyond the first few nobody knows afterwards what they freed since. Nor
 * does anybody know in which of several contexts that was. While nobody waits for a visit to end. */
static void await_pools(int place)
{
    enum { MOST_KNOWN = 16 };
    uint64_t freed_ever[MOST_KNOWN];
    bool pending = false;
    int count = atomic_load_explicit(&pool_count, memory_order_acquire);
    for (int i = 0; i < count; i++) {
        struct reserve *reserve = &pool_at(i)->reserve;
        pending |= reserve->place == place && reserve_idle_bytes(reserve) && reserve_pending(reserve);
        if (i < MOST_KNOWN)
            freed_ever[i] = reserve_freed_ever(reserve);
    }
    bool over = pending && await_streams() && context_is_only();
    for (int i = 0; over && i < count && i < MOST_KNOWN; i++)
        if (pool_at(i)->reserve.place == place)
            reserve_awaited(&pool_at(i)->reserve, freed_ever[i]);
    if (pending)
        pools_true_up(EVERY_PLACE); /* others may have shrunk by that as well */
}

void pools_trim(int place)
{
    await_pools(place);
    for (int i = 0; i < atomic_load_explicit(&pool_count, memory_order_acquire); i++) {
        struct pool *pool = pool_at(i);
        if (pool->reserve.place == place && reserve_idle_bytes(&pool->reserve)
            && pool_visit(pool, place, NULL))
            look_at(pool, true);
    }
}
