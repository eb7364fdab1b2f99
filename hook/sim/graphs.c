#include "graphs.h"

#include "graph_memory.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of the references */

CUgraph graph_new(void)
{
    return calloc(1, sizeof(struct CUgraph_st));
}

void graph_allocation_keep(struct graph_allocation *allocation)
{
    pthread_mutex_lock(&lock);
    allocation->references++;
    pthread_mutex_unlock(&lock);
}

void graph_allocation_drop(struct graph_allocation *allocation)
{
    pthread_mutex_lock(&lock);
    bool last = --allocation->references == 0;
    pthread_mutex_unlock(&lock);
    if (last) {
        sim_graph_memory_forget(allocation->address);
        free(allocation);
    }
}

static void drop_content(struct node_content *content)
{
    if (content->allocation)
        graph_allocation_drop(content->allocation);
    if (content->child)
        graph_delete(content->child);
}

void graph_delete(CUgraph graph)
{
    for (struct CUgraphNode_st *node = graph->nodes, *next; node; node = next) {
        next = node->next;
        drop_content(&node->content);
        free(node->dependencies);
        free(node);
    }
    free(graph);
}

struct CUgraphNode_st *graph_add(CUgraph graph, struct node_content content,
                                 struct CUgraphNode_st *const *dependencies, size_t count)
{
    struct CUgraphNode_st *node = calloc(1, sizeof *node);
    struct CUgraphNode_st **copy = node ? calloc(count + 1, sizeof *copy) : NULL;
    if (!copy) {
        free(node);
        drop_content(&content);
        return NULL;
    }
    if (count)
        memcpy(copy, dependencies, count * sizeof *copy);
    node->graph = graph;
    node->content = content;
    node->dependencies = copy;
    node->dependency_count = count;
    node->next = graph->nodes;
    graph->nodes = node;
    graph->count++;
    return node;
}

/* Graphs within one, from a launch of the same nodes in the same order, with their very memory. */
static bool same_child(const struct CUgraph_st *one, const struct CUgraph_st *other)
{
    if (!one || !other || one->count != other->count)
        return one == other;
    const struct CUgraphNode_st *a = one->nodes, *b = other->nodes;
    while (a && a->content.kind == b->content.kind && a->content.address == b->content.address
           && a->content.allocation == b->content.allocation
           && same_child(a->content.child, b->content.child)) {
        a = a->next;
        b = b->next;
    }
    return !a;
}

static bool same_memory(const struct node_content *one, const struct node_content *other)
{
    const struct graph_allocation *a = one->allocation, *b = other->allocation;
    return one->address == other->address && (!a || (a->device == b->device && a->bytes == b->bytes))
        && same_child(one->child, other->child);
}

struct CUgraphNode_st *graph_recapture(CUgraph graph, size_t position, struct node_content content,
                                       struct CUgraphNode_st *const *dependencies, size_t count)
{
    struct CUgraphNode_st *node = position < graph->count ? graph->nodes : NULL;
    for (size_t newer = graph->count - position; node && newer > 1; newer--)
        node = node->next;
    bool same = node && node->content.kind == content.kind && node->dependency_count == count
        && (!count || memcmp(node->dependencies, dependencies, count * sizeof *dependencies) == 0)
        && same_memory(&node->content, &content);
    if (same) {
        CUgraph before = node->content.child;
        node->content.function = content.function;
        node->content.child = content.child;
        content.child = before;
    }
    drop_content(&content);
    return same ? node : NULL;
}

static void mark_with_all_before(struct CUgraphNode_st *node, unsigned mark)
{
    while (node && node->mark != mark) { /* chains are long, forks are few */
        node->mark = mark;
        for (size_t i = 1; i < node->dependency_count; i++)
            mark_with_all_before(node->dependencies[i], mark);
        node = node->dependency_count ? node->dependencies[0] : NULL;
    }
}

bool graph_precedes(CUgraph graph, const struct CUgraphNode_st *node, struct CUgraphNode_st *const *tips,
                    size_t count)
{
    unsigned mark = ++graph->marks;
    for (size_t i = 0; i < count; i++)
        mark_with_all_before(tips[i], mark);
    return node->mark == mark;
}

CUresult graph_allocation_content(CUdevice device, uint64_t bytes, struct node_content *content)
{
    struct graph_allocation *allocation = calloc(1, sizeof *allocation);
    if (!allocation)
        return CUDA_ERROR_OUT_OF_MEMORY;
    allocation->device = device;
    allocation->bytes = bytes;
    CUresult result = sim_graph_memory_node(device, bytes, &allocation->address);
    if (result != CUDA_SUCCESS) {
        free(allocation);
        return result;
    }
    allocation->references = 1;
    *content = (struct node_content){.kind = GRAPH_NODE_ALLOCATION, .allocation = allocation};
    return CUDA_SUCCESS;
}
