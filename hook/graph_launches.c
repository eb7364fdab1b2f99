#include "graph_launches.h"
#include "charge.h"
#include "depth.h"
#include "devices.h"
#include "gpu_time.h"
#include "limits.h"
#include "looks.h"
#include "monotonic.h"
#include "real.h"
#include "reclaim.h"
#include "reserve.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#define NO_STREAM UINT64_MAX

/* What the graphs of a device do with what is reserved for them. */
struct sharing {
    uint64_t pending_bytes; /* that launches under way may add */
    uint64_t turns; /* of launches */
    uint64_t last; /* key of what was launched last, if alone at that; or 0 */
    uint64_t stream; /* where that was */
    uint64_t taken; /* how often one may have taken for longer what others had used, or at the same time */
    bool refused; /* graphs were seen not to share at all */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct reserve reserves[MAX_DEVICES]; /* by place */
static CUdevice ordinals[MAX_DEVICES];
static atomic_bool reserve_made[MAX_DEVICES]; /* with its ordinal */
static struct sharing sharings[MAX_DEVICES];
static uint64_t trims, trims_over; /* begun; and done */

void graph_memory_forget(void)
{
    pthread_mutex_init(&lock, NULL);
    memset(reserve_made, 0, sizeof reserve_made);
    memset(sharings, 0, sizeof sharings);
    trims_over = trims;
}

void graph_memory_known(int place, CUdevice device)
{
    if (reserve_made[place])
        return;
    reserve_init(&reserves[place], place);
    ordinals[place] = device;
    reserve_made[place] = true;
}

enum { WAIT_MS = 200, LOOK_MS = 1 };

/* When the driver does not tell, but has before: what it had then, and all that was charged for launches
 * since that it took (`grown`: for one just now). */
static uint64_t reserved_bytes(int place, bool grown)
{
    static atomic_bool told;
    const struct real_cuda *real = real_cuda();
    uint64_t bytes = 0;
    if (!real || !real->cuDeviceGetGraphMemAttribute)
        return 0;
    depth_enter();
    bool tells = real->cuDeviceGetGraphMemAttribute(ordinals[place], GRAPH_MEMORY_RESERVED_BYTES, &bytes)
        == CUDA_SUCCESS;
    depth_leave();
    if (tells)
        told = true;
    else
        bytes = !told ? 0
            : grown   ? reserve_idle_bytes(&reserves[place])
                      : reserve_seen_bytes(&reserves[place]);
    return bytes;
}

/* What is reserved, and charged from now on. `grown`: by what was charged for a launch. */
static uint64_t settle(int place, bool grown)
{
    uint64_t changes, reserved;
    do {
        changes = reserve_changes(&reserves[place]);
        reserved = reserved_bytes(place, grown);
    } while (reserve_settle(&reserves[place], changes, reserved, true) == ASK_AGAIN);
    return reserved;
}

void graph_memory_trims(bool begins)
{
    pthread_mutex_lock(&lock);
    trims += begins;
    trims_over += !begins;
    pthread_mutex_unlock(&lock);
}

/* A try to launch, on one device. */
struct attempt {
    uint64_t pending_bytes; /* of others, that are under way and came before */
    bool own; /* it needs nothing else */
    bool room; /* the same, or what it used then was used by others since only for as long as they ran */
};

/* What the graph left is still its own, and freed by its own launch; what it used and freed may be used by
 * any that come after it in the stream. So there is room for it again when nobody else freed the former, and
 * nobody left anything in the latter or ran beside it. What is kept is looked at when others see the launch
 * as under way: from then on they are charged for all that it needs, and no charge becomes less, so that what
 * is reserved stays charged even where it is freed and given back meanwhile. */
static struct attempt begin(struct graph_launch *launch, int place)
{
    looks_call_begins(place);
    reserve_hold(&reserves[place]);
    pthread_mutex_lock(&lock);
    struct sharing *sharing = &sharings[place];
    const struct graph_use *use = &launch->before;
    struct attempt attempt = {.pending_bytes = sharing->pending_bytes};
    sharing->pending_bytes += launch->needs.bytes[place];
    launch->turns[place] = ++sharing->turns;
    launch->trims[place] = trims == trims_over ? trims : UINT64_MAX;
    launch->alone[place] = attempt.pending_bytes == 0;
    if (sharing->stream != launch->stream)
        sharing->taken++;
    uint64_t kept_bytes; /* that it left when it was last launched and frees now */
    bool kept = graph_keeps(launch, place, &kept_bytes);
    if (launch->alone[place]) {
        bool shared = use->taken[place] == sharing->taken && !sharing->refused;
        attempt.own = kept_bytes >= launch->needs.bytes[place];
        attempt.room = use->launched && (sharing->last == launch->key || (kept && shared));
    }
    sharing->stream = launch->stream;
    launch->now.taken[place] = sharing->taken;
    pthread_mutex_unlock(&lock);
    return attempt;
}

/* Its launch is over, or not to be. */
static void end(const struct graph_launch *launch, int place)
{
    pthread_mutex_lock(&lock);
    sharings[place].pending_bytes -= launch->needs.bytes[place];
    pthread_mutex_unlock(&lock);
    looks_call_ended(place);
}

/* It is not to be launched. While it was to be, nobody could lower the charge. */
static void abandon(const struct graph_launch *launch, int place)
{
    reserve_claimed(&reserves[place], 0, false);
    (void)settle(place, false);
    end(launch, place);
}

/* Charge what it needs, if that is what is there for it already. */
static bool require_again(struct graph_launch *launch, struct attempt attempt, int place)
{
    if ((!attempt.own && !attempt.room)
        || reserve_require(&reserves[place], launch->needs.bytes[place], NULL) != CUDA_SUCCESS)
        return false;
    uint64_t reserved = reserved_bytes(place, false);
    if (!attempt.own && reserved < launch->before.reserved[place])
        return false;
    launch->before.reserved[place] = reserved;
    return launch->again[place] = true;
}

/* Charge what it may need besides what is reserved: others have left their memory to the program, or still
 * run. What idle ones keep is given back when there is no room for both; those that run are waited for, but
 * not for long, for nobody can tell them from the former. */
static CUresult require(struct graph_launch *launch, int place, const char *function)
{
    uint64_t until_ns = monotonic_ns() + (uint64_t)WAIT_MS * 1000000;
    for (int tries = 0;; tries++) {
        struct attempt attempt = begin(launch, place);
        if (require_again(launch, attempt, place))
            return CUDA_SUCCESS;
        uint64_t used = graph_bytes_sum(reserved_bytes(place, false), attempt.pending_bytes),
                 needed = launch->needs.bytes[place], kept, now_ns = monotonic_ns();
        (void)graph_keeps(launch, place, &kept); /* after that: then it is within what is used */
        needed -= kept < needed ? kept : needed;
        bool last = tries && (!used || now_ns >= until_ns);
        CUresult result =
            reserve_require(&reserves[place], graph_bytes_sum(used, needed), last ? function : NULL);
        if (result == CUDA_SUCCESS)
            return result;
        abandon(launch, place);
        if (last)
            return result;
        if (tries)
            monotonic_sleep_until(now_ns + (uint64_t)LOOK_MS * 1000000);
        if (needed <= limits_memory_bytes(place) && reclaimable(place, 0))
            reclaim(place);
    }
}

void graph_memory_stream_ends(CUstream stream)
{
    if (!graphs_allocate())
        return;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < MAX_DEVICES; i++)
        if (sharings[i].stream == gpu_time_stream(stream, false))
            sharings[i].stream = NO_STREAM;
    pthread_mutex_unlock(&lock);
}

CUresult graph_memory_before_launch(struct graph_launch *launch, CUgraphExec exec, CUstream stream,
                                    bool per_thread, bool runs, const char *function)
{
    launch->follow = false;
    launch->into = NULL;
    if (!graphs_allocate() || !charging() || !graph_needs(launch, exec))
        return CUDA_SUCCESS;
    launch->into = graph_captured(stream, per_thread);
    if (launch->into)
        return CUDA_SUCCESS;
    launch->follow = true;
    launch->runs = runs;
    launch->stream = gpu_time_stream(stream, per_thread);
    for (int i = 0; i < MAX_DEVICES; i++) {
        CUresult result = launch->needs.bytes[i] ? require(launch, i, function) : CUDA_SUCCESS;
        if (result == CUDA_SUCCESS)
            continue;
        while (--i >= 0)
            if (launch->needs.bytes[i])
                abandon(launch, i);
        launch->follow = false;
        return result;
    }
    if (runs)
        graph_leaves(launch, GRAPH_LAUNCHING);
    return CUDA_SUCCESS;
}

/* It was not launched: refused, or only uploaded. What others used it may have. But where it was the last
 * that was launched, and is refused now, what it used is there for it still: left, or freed and nobody
 * else's. */
static void forgo(const struct graph_launch *launch, int place)
{
    pthread_mutex_lock(&lock);
    struct sharing *sharing = &sharings[place];
    if (!launch->runs || sharing->last != launch->key)
        sharing->last = 0;
    sharing->taken++;
    pthread_mutex_unlock(&lock);
}

/* What it did. */
static void learn(struct graph_launch *launch, int place, uint64_t reserved)
{
    pthread_mutex_lock(&lock);
    struct sharing *sharing = &sharings[place];
    bool alone = launch->alone[place] && launch->turns[place] == sharing->turns;
    bool unchanged = sharing->taken == launch->now.taken[place];
    sharing->last = alone ? launch->key : 0;
    sharing->taken += launch->leaves && !launch->again[place];
    if (unchanged)
        launch->now.taken[place] = sharing->taken;
    if (launch->again[place] && alone && reserved > launch->before.reserved[place])
        sharing->refused = true;
    /* Beside others, or a trim, that is not what it left. */
    launch->now.reserved[place] = alone && launch->trims[place] == trims ? reserved : UINT64_MAX;
    pthread_mutex_unlock(&lock);
    graph_used(launch, place);
}

static enum graph_stage stage_of(CUresult result)
{
    return result == CUDA_SUCCESS ? GRAPH_LAUNCHED
        : result >= CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED && result <= CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD
        ? GRAPH_UNTOUCHED
        : GRAPH_REFUSED;
}

void graph_memory_after_launch(struct graph_launch *launch, CUresult result)
{
    if (launch->into && result == CUDA_SUCCESS)
        graph_takes_in(launch->into, launch);
    if (!launch->follow)
        return;
    bool launched = launch->runs && result == CUDA_SUCCESS;
    if (launch->runs)
        graph_leaves(launch, stage_of(result));
    for (int i = 0; i < MAX_DEVICES; i++) {
        if (!launch->needs.bytes[i])
            continue;
        reserve_claimed(&reserves[i], 0, true);
        uint64_t reserved = settle(i, launched);
        if (launched) /* otherwise what is reserved is of other graphs */
            learn(launch, i, reserved);
        else
            forgo(launch, i);
        end(launch, i);
    }
}

void graph_memory_true_up(CUdevice device)
{
    int place = graphs_allocate() ? place_of_device(device) : -1;
    if (place >= 0 && reserve_made[place])
        settle(place, false);
}

void graph_memory_true_up_place(int place)
{
    if (graph_memory_idle_bytes(place))
        settle(place, false);
}

uint64_t graph_memory_idle_bytes(int place)
{
    bool made = graphs_allocate() && place >= 0 && reserve_made[place];
    return made ? reserve_idle_bytes(&reserves[place]) : 0;
}

void graph_memory_trim(int place)
{
    const struct real_cuda *real = real_cuda();
    if (!graph_memory_idle_bytes(place))
        return;
    graph_memory_trims(true);
    if (real && real->cuDeviceGraphMemTrim)
        real->cuDeviceGraphMemTrim(ordinals[place]);
    graph_memory_trims(false);
    settle(place, false);
}
