#include "graphs.h"
#include "depth.h"
#include "devices.h"
#include "monotonic.h"
#include "pools.h"
#include "real.h"
#include "reclaim.h"
#include "reserve.h"
#include "settings.h"
#include "table.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* What the allocation nodes of a graph, or of an executable one, take of each device. */
struct nodes {
    struct entry entry;
    uint64_t bytes[MAX_DEVICES]; /* by place */
    /* Of an executable one: what was reserved when it was last launched, and then. */
    uint64_t before[MAX_DEVICES], after[MAX_DEVICES];
    bool ran; /* it was launched */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t fork_once = PTHREAD_ONCE_INIT;
static struct table graphs, execs;
static _Atomic bool any; /* this process has a graph that allocates */
static struct reserve reserves[MAX_DEVICES]; /* by place */
static CUdevice ordinals[MAX_DEVICES];
static atomic_bool reserve_made[MAX_DEVICES]; /* with its ordinal */
static atomic_bool overlapping[MAX_DEVICES]; /* graphs may not use what others had left */
static _Atomic uint64_t lasts[MAX_DEVICES]; /* key of what was launched last */

static void forget_after_fork(void)
{
    pthread_mutex_init(&lock, NULL);
    memset(&graphs, 0, sizeof graphs);
    memset(&execs, 0, sizeof execs);
    memset(reserve_made, 0, sizeof reserve_made);
    memset(overlapping, 0, sizeof overlapping);
    atomic_store(&any, false);
}

static void watch_forks(void)
{
    pthread_atfork(NULL, NULL, forget_after_fork);
}

static uint64_t key_of(const void *handle)
{
    return (uint64_t)(uintptr_t)handle;
}

/* Called with the lock held. NULL when there is no memory. */
static struct nodes *nodes_of(struct table *table, const void *handle)
{
    struct nodes *nodes = (struct nodes *)table_find(table, key_of(handle));
    if (!nodes && (nodes = calloc(1, sizeof *nodes)))
        table_add(table, &nodes->entry, key_of(handle));
    return nodes;
}

static void forget(struct table *table, const void *handle)
{
    if (!graphs_allocate())
        return;
    pthread_mutex_lock(&lock);
    struct entry *entry = table_find(table, key_of(handle));
    if (entry)
        table_remove(table, entry);
    pthread_mutex_unlock(&lock);
    free(entry);
}

CUgraph graph_captured(CUstream stream, bool per_thread)
{
    const struct real_cuda *real = real_cuda();
    if (!real)
        return NULL;
    __typeof__(real->cuStreamGetCaptureInfo_v2) ask =
        per_thread ? real->cuStreamGetCaptureInfo_v2_ptsz : real->cuStreamGetCaptureInfo_v2;
    CUstreamCaptureStatus status = CAPTURE_NONE;
    cuuint64_t id = 0;
    CUgraph graph = NULL;
    if (!ask)
        return NULL;
    depth_enter();
    if (ask(stream, &status, &id, &graph, NULL, NULL) != CUDA_SUCCESS || status != CAPTURE_ACTIVE)
        graph = NULL;
    depth_leave();
    return graph;
}

bool graphs_allocate(void)
{
    return atomic_load_explicit(&any, memory_order_relaxed);
}

void graph_allocates(CUgraph graph, CUdevice device, uint64_t bytes)
{
    int place = place_of_device(device);
    if (!charging() || place < 0 || bytes == 0)
        return;
    pthread_once(&fork_once, watch_forks);
    pthread_mutex_lock(&lock);
    atomic_store(&any, true);
    if (!reserve_made[place]) {
        reserve_init(&reserves[place], place);
        ordinals[place] = device;
        reserve_made[place] = true;
    }
    struct nodes *nodes = nodes_of(&graphs, graph);
    if (nodes)
        nodes->bytes[place] += bytes < UINT64_MAX - nodes->bytes[place] ? bytes : 0;
    pthread_mutex_unlock(&lock);
}

/* Let the entry for `to` have what the graph `from` has: besides what it has, or instead. */
static void copy(struct table *table, const void *to, CUgraph from, bool instead)
{
    if (!graphs_allocate())
        return;
    pthread_mutex_lock(&lock);
    const struct nodes *source = (struct nodes *)table_find(&graphs, key_of(from));
    bool known = source || table_find(table, key_of(to));
    struct nodes *nodes = known ? nodes_of(table, to) : NULL;
    if (nodes)
        nodes->ran = false;
    for (int i = 0; nodes && i < MAX_DEVICES; i++)
        nodes->bytes[i] = (instead ? 0 : nodes->bytes[i]) + (source ? source->bytes[i] : 0);
    pthread_mutex_unlock(&lock);
}

void graph_contains(CUgraph whole, CUgraph part)
{
    copy(&graphs, whole, part, false);
}

void graph_forget(CUgraph graph)
{
    forget(&graphs, graph);
}

void graph_ended_capture(CUgraph captured, CUgraph graph)
{
    if (!captured || captured == graph)
        return;
    if (graph)
        graph_contains(graph, captured);
    graph_forget(captured);
}

void graph_instantiated(CUgraphExec exec, CUgraph graph)
{
    copy(&execs, exec, graph, true);
}

void graph_exec_forget(CUgraphExec exec)
{
    forget(&execs, exec);
}

/* --- launches ------------------------------------------------------------------------------------------- */

enum { WAIT_MS = 200, LOOK_MS = 1 };

/* What the nodes of `exec` take of each place, and whether it has been launched; false for nothing. */
static bool needs(CUgraphExec exec, struct nodes *found)
{
    if (!graphs_allocate() || !charging())
        return false;
    pthread_mutex_lock(&lock);
    const struct nodes *nodes = (struct nodes *)table_find(&execs, key_of(exec));
    if (nodes)
        *found = *nodes;
    pthread_mutex_unlock(&lock);
    return nodes != NULL;
}

static uint64_t reserved_bytes(CUdevice device)
{
    const struct real_cuda *real = real_cuda();
    uint64_t bytes = 0;
    if (!real || !real->cuDeviceGetGraphMemAttribute)
        return 0;
    depth_enter();
    if (real->cuDeviceGetGraphMemAttribute(device, GRAPH_MEMORY_RESERVED_BYTES, &bytes) != CUDA_SUCCESS)
        bytes = 0;
    depth_leave();
    return bytes;
}

void graph_memory_left(void)
{
    for (int i = 0; i < MAX_DEVICES; i++)
        if (atomic_load(&reserve_made[i]))
            atomic_store(&overlapping[i], true);
}

static void note_before(CUgraphExec exec, int place, uint64_t reserved)
{
    pthread_mutex_lock(&lock);
    struct nodes *nodes = (struct nodes *)table_find(&execs, key_of(exec));
    if (nodes)
        nodes->before[place] = reserved;
    pthread_mutex_unlock(&lock);
}

static void settle(int place)
{
    uint64_t changes = reserve_changes(&reserves[place]);
    reserve_settle(&reserves[place], changes, reserved_bytes(ordinals[place]), true, "cuGraphLaunch");
}

/* Graphs use the same memory one after the other: the charge is at least what this one needs. */
static CUresult require_alone(int place, uint64_t bytes, const char *function)
{
    CUresult result = reserve_require(&reserves[place], bytes, NULL); /* see charge_reclaiming */
    if (result == CUDA_SUCCESS)
        return result;
    if (reclaimable(place))
        reclaim(place);
    return reserve_require(&reserves[place], bytes, function);
}

/* The same for one that may need it besides what is reserved: others have left their memory to the program,
 * or still run. What idle ones keep is given back when there is no room for both; those that run are waited
 * for, but not for long, for nobody can tell them from the former. */
static CUresult require_besides(int place, uint64_t bytes, const char *function)
{
    uint64_t until_ns = monotonic_ns() + (uint64_t)WAIT_MS * 1000000;
    CUresult result = reserve_require(&reserves[place], reserved_bytes(ordinals[place]) + bytes, NULL);
    while (result != CUDA_SUCCESS) {
        if (reclaimable(place))
            reclaim(place);
        uint64_t used = reserved_bytes(ordinals[place]), now_ns = monotonic_ns();
        bool last = !used || now_ns >= until_ns;
        result = reserve_require(&reserves[place], used + bytes, last ? function : NULL);
        if (last)
            break;
        if (result != CUDA_SUCCESS)
            monotonic_sleep_until(now_ns + (uint64_t)LOOK_MS * 1000000);
    }
    return result;
}

/* Whether what it took when it last ran is there for it again: nothing was given back since, and no other
 * graph that may have left it to the program was launched. */
static bool has_room(const struct nodes *nodes, CUgraphExec exec, int place)
{
    return nodes->ran && reserved_bytes(ordinals[place]) >= nodes->after[place]
        && (!overlapping[place] || atomic_load(&lasts[place]) == key_of(exec));
}

CUresult graph_memory_before_launch(CUgraphExec exec, const char *function)
{
    struct nodes nodes;
    if (!needs(exec, &nodes))
        return CUDA_SUCCESS;
    for (int i = 0; i < MAX_DEVICES; i++) {
        if (!nodes.bytes[i])
            continue;
        CUresult result =
            (has_room(&nodes, exec, i) ? require_alone : require_besides)(i, nodes.bytes[i], function);
        if (result == CUDA_SUCCESS) {
            note_before(exec, i, reserved_bytes(ordinals[i]));
            continue;
        }
        while (--i >= 0)
            if (nodes.bytes[i])
                reserve_claimed(&reserves[i], 0, false);
        return result;
    }
    return CUDA_SUCCESS;
}

/* Nodes of one graph may use the same memory one after the other: then it needs less than their sum. */
static void learn(CUgraphExec exec, int place, uint64_t reserved)
{
    pthread_mutex_lock(&lock);
    struct nodes *nodes = (struct nodes *)table_find(&execs, key_of(exec));
    if (nodes) {
        nodes->ran = true;
        nodes->after[place] = reserved;
        atomic_store(&lasts[place], key_of(exec));
        if (nodes->before[place] >= nodes->bytes[place] && reserved > nodes->before[place])
            overlapping[place] = true;
        if (reserved && nodes->bytes[place] > reserved)
            nodes->bytes[place] = reserved;
    }
    pthread_mutex_unlock(&lock);
}

void graph_memory_after_launch(CUgraphExec exec, bool launched)
{
    struct nodes nodes;
    if (!needs(exec, &nodes))
        return;
    for (int i = 0; i < MAX_DEVICES; i++) {
        if (!nodes.bytes[i])
            continue;
        reserve_claimed(&reserves[i], 0, true);
        uint64_t changes = reserve_changes(&reserves[i]), reserved = reserved_bytes(ordinals[i]);
        reserve_settle(&reserves[i], changes, reserved, true, "cuGraphLaunch");
        if (launched) /* otherwise what is reserved is of other graphs */
            learn(exec, i, reserved);
    }
}

void graph_memory_true_up(CUdevice device)
{
    int place = graphs_allocate() ? place_of_device(device) : -1;
    if (place >= 0 && reserve_made[place])
        settle(place);
}

void graph_memory_true_up_place(int place)
{
    if (graph_memory_idle_bytes(place))
        settle(place);
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
    if (real && real->cuDeviceGraphMemTrim)
        real->cuDeviceGraphMemTrim(ordinals[place]);
    settle(place);
}
