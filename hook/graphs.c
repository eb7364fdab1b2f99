#include "graphs.h"
#include "charge.h"
#include "depth.h"
#include "devices.h"
#include "graph_launches.h"
#include "real.h"
#include "settings.h"
#include "table.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* What the nodes of a graph, or of an executable one, take and free. */
struct nodes {
    struct entry entry;
    struct graph_needs needs;
    struct graph_use use; /* of an executable one */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t fork_once = PTHREAD_ONCE_INIT;
static struct table graphs, execs;
static _Atomic bool any; /* this process has a graph that allocates */

static void forget_after_fork(void)
{
    pthread_mutex_init(&lock, NULL);
    memset(&graphs, 0, sizeof graphs);
    memset(&execs, 0, sizeof execs);
    graph_memory_forget();
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

static struct nodes *take(struct table *table, const void *handle)
{
    if (!graphs_allocate())
        return NULL;
    pthread_mutex_lock(&lock);
    struct entry *entry = table_find(table, key_of(handle));
    if (entry)
        table_remove(table, entry);
    pthread_mutex_unlock(&lock);
    return (struct nodes *)entry;
}

static CUresult taken(struct table *table, struct nodes *nodes, CUresult result)
{
    if (nodes && result != CUDA_SUCCESS) {
        pthread_mutex_lock(&lock);
        table_add(table, &nodes->entry, nodes->entry.key);
        pthread_mutex_unlock(&lock);
    } else {
        free(nodes);
    }
    return result;
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
    if (ask(stream, &status, &id, &graph, NULL, NULL) != CUDA_SUCCESS)
        status = CAPTURE_NONE;
    depth_leave();
    return status == CAPTURE_ACTIVE ? graph : status == CAPTURE_INVALIDATED ? SPOILED_GRAPH : NULL;
}

bool graphs_allocate(void)
{
    return atomic_load_explicit(&any, memory_order_relaxed);
}

/* No sums of marks are equal by chance, as those of addresses are. */
static uint64_t mark(CUdeviceptr address)
{
    uint64_t mixed = (address ^ address >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    mixed = (mixed ^ mixed >> 27) * UINT64_C(0x94d049bb133111eb);
    return mixed ^ mixed >> 31;
}

uint64_t graph_bytes_sum(uint64_t one, uint64_t other)
{
    const uint64_t most = UINT64_C(1) << 60;
    return one < most && other < most && one + other < most ? one + other : most;
}

void graph_allocates(CUgraph graph, CUdevice device, uint64_t bytes, CUdeviceptr address)
{
    int place = place_of_device(device);
    if (!charging() || place < 0 || bytes == 0)
        return;
    pthread_once(&fork_once, watch_forks);
    pthread_mutex_lock(&lock);
    atomic_store(&any, true);
    graph_memory_known(place, device);
    struct nodes *nodes = nodes_of(&graphs, graph);
    if (nodes) {
        nodes->needs.bytes[place] = graph_bytes_sum(nodes->needs.bytes[place], bytes);
        nodes->needs.left += mark(address);
    }
    pthread_mutex_unlock(&lock);
}

void graph_frees(CUgraph graph, CUdeviceptr address)
{
    if (!graphs_allocate() || !charging())
        return;
    pthread_mutex_lock(&lock);
    struct nodes *nodes = nodes_of(&graphs, graph);
    if (nodes) {
        nodes->needs.left -= mark(address);
        nodes->needs.frees = true;
    }
    pthread_mutex_unlock(&lock);
}

/* Called with the lock held. */
static void add_needs(struct nodes *nodes, const struct graph_needs *needs)
{
    for (int i = 0; i < MAX_DEVICES; i++)
        nodes->needs.bytes[i] = graph_bytes_sum(nodes->needs.bytes[i], needs->bytes[i]);
    nodes->needs.left += needs->left;
    nodes->needs.frees |= needs->frees;
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
    if (nodes && instead)
        *nodes = (struct nodes){.entry = nodes->entry};
    if (nodes && source)
        add_needs(nodes, &source->needs);
    pthread_mutex_unlock(&lock);
}

void graph_takes_in(CUgraph graph, const struct graph_needs *needs)
{
    pthread_mutex_lock(&lock);
    struct nodes *nodes = nodes_of(&graphs, graph);
    if (nodes)
        add_needs(nodes, needs);
    pthread_mutex_unlock(&lock);
}

void graph_made(CUgraph graph)
{
    free(take(&graphs, graph));
}

void graph_contains(CUgraph whole, CUgraph part)
{
    copy(&graphs, whole, part, false);
}

struct nodes *graph_ending(CUgraph graph)
{
    return take(&graphs, graph);
}

CUresult graph_ended(struct nodes *nodes, CUresult result)
{
    return taken(&graphs, nodes, result);
}

void graph_ended_capture(CUgraph captured, CUgraph graph)
{
    if (!captured || captured == graph)
        return;
    graph_contains(graph, captured);
    free(take(&graphs, captured));
}

void graph_instantiated(CUgraphExec exec, CUgraph graph)
{
    copy(&execs, exec, graph, true);
}

struct nodes *graph_exec_ending(CUgraphExec exec)
{
    return take(&execs, exec);
}

CUresult graph_exec_ended(struct nodes *nodes, CUresult result)
{
    return taken(&execs, nodes, result);
}

bool graph_needs(struct graph_launch *launch, CUgraphExec exec)
{
    pthread_mutex_lock(&lock);
    const struct nodes *nodes = (struct nodes *)table_find(&execs, key_of(exec));
    if (nodes)
        *launch = (struct graph_launch){.key = key_of(exec), .needs = nodes->needs, .before = nodes->use};
    pthread_mutex_unlock(&lock);
    return nodes;
}

void graph_used(const struct graph_launch *launch, int place)
{
    pthread_mutex_lock(&lock);
    struct nodes *nodes = (struct nodes *)table_find(&execs, launch->key);
    if (nodes) {
        uint64_t reserved = launch->now.reserved[place];
        nodes->use.launched = true;
        nodes->use.freed = launch->now.freed;
        nodes->use.reserved[place] = reserved;
        nodes->use.taken[place] = launch->now.taken[place];
        /* Nodes may use the same memory one after the other: then it needs less than their sum. */
        if (reserved && nodes->needs.bytes[place] > reserved)
            nodes->needs.bytes[place] = reserved;
    }
    pthread_mutex_unlock(&lock);
}
