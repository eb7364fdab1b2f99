#include "graphs.h"
#include "charge.h"
#include "depth.h"
#include "devices.h"
#include "graph_launches.h"
#include "graph_left.h"
#include "loose.h"
#include "real.h"
#include "settings.h"
#include "table.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { GRANULE = 512 };

/* A node that allocates what its graph leaves to the program, or that frees what another graph leaves. */
struct node {
    struct node *next;
    CUdeviceptr address;
    uint64_t bytes; /* 0: it frees */
    int place;
};

/* What the nodes of a graph, or of an executable one, take and free. */
struct nodes {
    struct entry entry;
    struct graph_needs needs;
    struct node *outlasting;
    uint64_t again_bytes[MAX_DEVICES]; /* that are there, and are yet to be captured anew */
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
    left_forget();
    graph_memory_forget();
    loose_store(&any, false);
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

static void drop(struct nodes *nodes)
{
    for (struct node *node = nodes ? nodes->outlasting : NULL, *next; node; node = next) {
        next = node->next;
        free(node);
    }
    free(nodes);
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
        drop(nodes);
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

uint64_t graph_bytes_sum(uint64_t one, uint64_t other)
{
    const uint64_t most = UINT64_C(1) << 60;
    return one < most && other < most && one + other < most ? one + other : most;
}

/* --- nodes ---------------------------------------------------------------------------------------------- */

/* Called with the lock held. */
static void add_node(struct nodes *nodes, CUdeviceptr address, uint64_t bytes, int place)
{
    struct node *node = malloc(sizeof *node);
    if (node)
        *node = (struct node){nodes->outlasting, address, bytes, place};
    else
        nodes->needs.unsure = true;
    if (node)
        nodes->outlasting = node;
}

/* The same for a node that frees: maybe what the graph itself allocates, which it then does not leave; or one
 * that is there. */
static void add_free(struct nodes *nodes, CUdeviceptr address)
{
    struct node **link = &nodes->outlasting, *node;
    while ((node = *link) && node->address != address)
        link = &node->next;
    if (!node) {
        add_node(nodes, address, 0, 0);
    } else if (node->bytes) {
        *link = node->next;
        free(node);
    }
}

void graph_allocates(CUgraph graph, CUdevice device, uint64_t bytes, CUdeviceptr address, bool captured)
{
    int place = place_of_device(device);
    if (!charging() || place < 0 || bytes == 0)
        return;
    bytes = graph_bytes_sum(bytes, GRANULE - 1) / GRANULE * GRANULE;
    pthread_once(&fork_once, watch_forks);
    pthread_mutex_lock(&lock);
    atomic_store(&any, true);
    graph_memory_known(place, device);
    struct nodes *nodes = nodes_of(&graphs, graph);
    if (nodes && captured && nodes->again_bytes[place] >= bytes) {
        nodes->again_bytes[place] -= bytes;
    } else if (nodes) {
        nodes->needs.bytes[place] = graph_bytes_sum(nodes->needs.bytes[place], bytes);
        add_node(nodes, address, bytes, place);
        left_drop(address); /* of one that ended with its context */
    }
    pthread_mutex_unlock(&lock);
}

void graph_frees(CUgraph graph, CUdeviceptr address)
{
    if (!graphs_allocate() || !charging())
        return;
    pthread_mutex_lock(&lock);
    struct nodes *nodes = nodes_of(&graphs, graph);
    if (nodes)
        add_free(nodes, address);
    pthread_mutex_unlock(&lock);
}

/* Called with the lock held. `captured` are those that a capture adds: of what is captured anew they take the
 * place, as they are the same. */
static void add_nodes(struct nodes *nodes, const struct nodes *source, bool captured)
{
    for (const struct node *node = source->outlasting; node; node = node->next)
        if (!node->bytes)
            add_free(nodes, node->address);
        else if (!captured || !nodes->again_bytes[node->place])
            add_node(nodes, node->address, node->bytes, node->place);
    for (int i = 0; i < MAX_DEVICES; i++) {
        uint64_t bytes = source->needs.bytes[i], again = captured ? nodes->again_bytes[i] : 0;
        if (again > bytes)
            again = bytes;
        nodes->again_bytes[i] -= again;
        nodes->needs.bytes[i] = graph_bytes_sum(nodes->needs.bytes[i], bytes - again);
    }
    nodes->needs.unsure |= source->needs.unsure;
}

/* Let the entry for `to` have what the one for `from` has, besides what it has. */
static void copy(struct table *table, const void *to, const struct table *from_table, uint64_t from,
                 bool captured)
{
    if (!graphs_allocate())
        return;
    pthread_mutex_lock(&lock);
    const struct nodes *source = (struct nodes *)table_find(from_table, from);
    struct nodes *nodes = source ? nodes_of(table, to) : NULL;
    if (nodes)
        add_nodes(nodes, source, captured);
    pthread_mutex_unlock(&lock);
}

void graph_takes_in(CUgraph graph, const struct graph_launch *launch)
{
    copy(&graphs, graph, &execs, launch->key, true);
}

void graph_made(CUgraph graph)
{
    drop(take(&graphs, graph));
}

void graph_contains(CUgraph whole, CUgraph part)
{
    copy(&graphs, whole, &graphs, key_of(part), false);
}

void graph_captured_into(CUgraph graph, bool again)
{
    if (!graphs_allocate())
        return;
    pthread_mutex_lock(&lock);
    struct nodes *nodes = (struct nodes *)table_find(&graphs, key_of(graph));
    for (int i = 0; nodes && i < MAX_DEVICES; i++)
        nodes->again_bytes[i] = again ? nodes->needs.bytes[i] : 0;
    pthread_mutex_unlock(&lock);
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
    drop(take(&graphs, captured));
}

void graph_instantiated(CUgraphExec exec, CUgraph graph)
{
    drop(take(&execs, exec));
    copy(&execs, exec, &graphs, key_of(graph), false);
}

struct nodes *graph_exec_ending(CUgraphExec exec)
{
    return take(&execs, exec);
}

CUresult graph_exec_ended(struct nodes *nodes, CUresult result)
{
    return taken(&execs, nodes, result);
}

/* --- launches ------------------------------------------------------------------------------------------- */

bool graph_needs(struct graph_launch *launch, CUgraphExec exec)
{
    pthread_mutex_lock(&lock);
    const struct nodes *nodes = (struct nodes *)table_find(&execs, key_of(exec));
    if (nodes)
        *launch =
            (struct graph_launch){.key = key_of(exec), .needs = nodes->needs, .leaves = nodes->needs.unsure};
    for (const struct node *node = nodes ? nodes->outlasting : NULL; node; node = node->next)
        launch->leaves |= node->bytes > 0;
    pthread_mutex_unlock(&lock);
    return nodes;
}

bool graph_keeps(struct graph_launch *launch, int place, uint64_t *bytes)
{
    bool all = !launch->needs.unsure;
    *bytes = 0;
    pthread_mutex_lock(&lock);
    const struct nodes *nodes = (struct nodes *)table_find(&execs, launch->key);
    for (const struct node *node = nodes ? nodes->outlasting : NULL; node; node = node->next)
        if (node->bytes && node->place == place) {
            bool there = left_there(node->address);
            *bytes += there ? node->bytes : 0;
            all &= there;
        }
    if (nodes) {
        launch->before.launched = nodes->use.launched;
        launch->before.reserved[place] = nodes->use.reserved[place];
        launch->before.taken[place] = nodes->use.taken[place];
    }
    pthread_mutex_unlock(&lock);
    return all;
}

void graph_leaves(const struct graph_launch *launch, enum graph_stage stage)
{
    pthread_mutex_lock(&lock);
    const struct nodes *nodes = (struct nodes *)table_find(&execs, launch->key);
    for (const struct node *node = nodes ? nodes->outlasting : NULL; node; node = node->next)
        if (!node->bytes && stage == GRAPH_LAUNCHING)
            left_free_begins(node->address);
        else if (!node->bytes)
            left_free_ends(node->address, stage != GRAPH_UNTOUCHED); /* where refused, nobody knows */
        else if (stage == GRAPH_LAUNCHING)
            left_add(node->address);
        else
            left_launched(node->address, stage);
    pthread_mutex_unlock(&lock);
}

void graph_freeing(CUdeviceptr address)
{
    pthread_mutex_lock(&lock);
    left_free_begins(address);
    pthread_mutex_unlock(&lock);
}

void graph_freed(CUgraph into, CUdeviceptr address, bool freed)
{
    if (into) {
        if (freed)
            graph_frees(into, address);
        return;
    }
    pthread_mutex_lock(&lock);
    left_free_ends(address, freed);
    pthread_mutex_unlock(&lock);
}

void graph_used(const struct graph_launch *launch, int place)
{
    pthread_mutex_lock(&lock);
    struct nodes *nodes = (struct nodes *)table_find(&execs, launch->key);
    if (nodes) {
        uint64_t reserved = launch->now.reserved[place];
        nodes->use.launched = true;
        nodes->use.reserved[place] = reserved;
        nodes->use.taken[place] = launch->now.taken[place];
        /* Nodes may use the same memory one after the other: then it needs less than their sum. */
        if (reserved && nodes->needs.bytes[place] > reserved)
            nodes->needs.bytes[place] = reserved;
    }
    pthread_mutex_unlock(&lock);
}
