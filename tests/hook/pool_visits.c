/* A pool is destroyed by one thread while another one trims it, or allocates from it: prints whose account was
 * used when, and whether the driver was asked to destroy it only after the other was done with its handle.
 * pools.c with a driver of this file's own.
 */
#include "devices.h"
#include "graphs.h"
#include "launch_gate.h"
#include "pools.h"
#include "real.h"
#include "reclaim.h"
#include "streams.h"
#include "wrap.h"

#include <pthread.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PATIENCE_US = 200000, BYTES = 1 << 20 };

static struct CUmemPoolHandle_st {
    char byte;
} handle;
static _Atomic int trimming, destroyed;
static int destroyed_while_trimmed;

static CUresult trim(CUmemoryPool pool, size_t bytes)
{
    (void)pool, (void)bytes;
    trimming = 1;
    for (int waited = 0; waited < PATIENCE_US && !destroyed; waited += 1000)
        usleep(1000);
    destroyed_while_trimmed = destroyed;
    return CUDA_SUCCESS;
}

static CUresult device(CUdevice *into)
{
    *into = 0;
    return CUDA_SUCCESS;
}

static struct real_cuda driver = {.cuCtxGetDevice = device, .cuMemPoolTrimTo = trim};
static const struct real_cuda *const known = &driver;
_Atomic(const void *) real_known[2] = {&driver};

bool charging_bytes(uint64_t bytes)
{
    return bytes > 0;
}
bool charging(void)
{
    return true;
}
bool charge_at_once(int place, enum charge_kind kind, uint64_t bytes, uint64_t calls)
{
    (void)place, (void)kind, (void)bytes, (void)calls;
    return true;
}
void charge_from_the_dead(void)
{
}
CUresult charge_refused(int place, uint64_t bytes, const char *function)
{
    (void)place, (void)bytes, (void)function;
    return CUDA_ERROR_OUT_OF_MEMORY;
}
void charge_anyway(int place, enum charge_kind kind, uint64_t bytes)
{
    (void)place, (void)kind, (void)bytes;
}
void charge_back(int place, enum charge_kind kind, uint64_t bytes, uint64_t calls)
{
    (void)place, (void)kind, (void)bytes, (void)calls;
}
CUresult charge_reclaiming(int place, enum charge_kind kind, uint64_t bytes, const char *function)
{
    (void)place, (void)kind, (void)bytes, (void)function;
    return CUDA_SUCCESS;
}
bool reclaimable(int place, uint64_t bytes)
{
    (void)bytes;
    return place > 0;
}
bool await_streams(void)
{
    return false;
}
bool context_is_only(void)
{
    return false;
}
void await_forget(void)
{
}
void reclaim(int place)
{
    (void)place;
}
void looks_call_begins(int place)
{
    (void)place;
}
void looks_call_ended(int place)
{
    (void)place;
}
bool launch_gate_captures(void)
{
    return false;
}
void guesses_settle(int place, bool now)
{
    (void)place, (void)now;
}
struct quiet quiet_begin(void)
{
    return (struct quiet){0};
}
void quiet_end(struct quiet quiet)
{
    (void)quiet;
}
CUdevice device_at(const CUmemLocation *location)
{
    return location->id;
}

CUcontext stream_enter(CUstream stream)
{
    (void)stream;
    return NULL; /* that which is current */
}

void stream_leave(CUcontext entered)
{
    (void)entered;
}

int place_of_device(CUdevice ordinal)
{
    return ordinal;
}
CUresult device_unknown(CUresult result)
{
    return result;
}
CUgraph graph_captured(CUstream stream, bool per_thread)
{
    return (void)stream, (void)per_thread, NULL;
}
void graph_allocates(CUgraph graph, CUdevice ordinal, uint64_t bytes, CUdeviceptr address, bool captured)
{
    (void)address;
    (void)graph, (void)ordinal, (void)bytes, (void)captured;
}
CUresult wrap_settle(struct block *block, CUresult result, unsigned long long key)
{
    return (void)block, (void)key, result;
}
struct block *wrap_freeing(enum block_space space, unsigned long long key)
{
    return (void)space, (void)key, NULL;
}
CUresult wrap_freed(struct block *block, CUresult result)
{
    return (void)block, result;
}
bool graphs_allocate(void)
{
    return false;
}
void graph_freeing(CUdeviceptr address)
{
    (void)address;
}
void graph_freed(CUgraph into, CUdeviceptr address, bool freed)
{
    (void)into, (void)address, (void)freed;
}
const void *real_search(enum driver which, bool load)
{
    return (void)which, (void)load, known;
}

static void *trim_all(void *unused)
{
    pools_trim(0);
    return unused;
}

/* Take from the pool and give it back: the number of its account. */
static int use(void)
{
    struct pooled pooled;
    CUdeviceptr address = 0x1000;
    pooled_begin(&pooled, BYTES, &handle, NULL, false, "cuMemAllocFromPoolAsync");
    pooled_end(&pooled, CUDA_SUCCESS, &address);
    struct freeing freeing;
    freeing_begin(&freeing, NO_STREAM_NUMBER, NULL, address);
    freeing_end(&freeing, CUDA_SUCCESS);
    return pooled.pool;
}

/* While the driver is asked to destroy the pool, and does not: it is the device's own. */
static int used_while_ending(void)
{
    struct pool *account = pool_ending(&handle);
    int number = use();
    pool_ended(account, CUDA_ERROR_INVALID_VALUE);
    return number;
}

/* A child has no pools, though the driver may give it a handle that its parent had. */
static int used_by_child(void)
{
    int status = 0;
    if (fork() == 0) {
        alarm(10);
        _exit(use());
    }
    wait(&status);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

int main(void)
{
    static struct CUmemPoolHandle_st other;
    CUmemPoolProps properties = {.location = {MEMORY_LOCATION_DEVICE, 0}};
    pthread_t thread;
    pool_created(&other, &properties);
    pool_created(&handle, &properties);
    int ending = used_while_ending(), here = use(), there = used_by_child();
    pthread_create(&thread, NULL, trim_all, NULL);
    while (!trimming)
        usleep(1000);
    struct pool *account = pool_ending(&handle);
    destroyed = 1;
    pool_created(&handle, &properties); /* another one: the driver gave the handle out anew */
    pool_ended(account, CUDA_SUCCESS);
    pthread_join(thread, NULL);
    printf("%d %d %d %d %s\n", ending, here, there, use(), destroyed_while_trimmed ? "too early" : "in time");
    return 0;
}
