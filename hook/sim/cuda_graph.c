/* Simulated CUDA driver: graphs that programs build node by node. */
#include "graphs.h"

#include <stdlib.h>
#include <string.h>

static CUresult add(const char *function, CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
                    size_t count, const struct node_content *content)
{
    struct cuda_call call;
    CUresult result = cuda_begin(&call, function);
    if (result == CUDA_SUCCESS && (!node || !graph || (count && !dependencies) || !content))
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS) {
        *node = graph_add(graph, *content, dependencies, count);
        result = *node ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    }
    return cuda_end(&call, result);
}

EXPORT CUresult cuGraphCreate(CUgraph *graph, unsigned flags)
{
    struct cuda_call call;
    CUresult result = cuda_begin(&call, __func__);
    if (result == CUDA_SUCCESS && (!graph || flags))
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        result = (*graph = graph_new()) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    return cuda_end(&call, result);
}

EXPORT CUresult cuGraphDestroy(CUgraph graph)
{
    struct cuda_call call;
    CUresult result = cuda_begin(&call, __func__);
    if (result == CUDA_SUCCESS && !graph)
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        graph_delete(graph);
    return cuda_end(&call, result);
}

static bool has_memory(const struct CUgraph_st *graph)
{
    for (const struct CUgraphNode_st *node = graph->nodes; node; node = node->next)
        if (node->content.kind == GRAPH_NODE_ALLOCATION || node->content.kind == GRAPH_NODE_FREE
            || (node->content.child && has_memory(node->content.child)))
            return true;
    return false;
}

/* A copy of a graph without memory. Its nodes keep their order, which is all that running them needs. */
static CUgraph copy(const struct CUgraph_st *graph)
{
    CUgraph fresh = graph_new();
    struct CUgraphNode_st **end = fresh ? &fresh->nodes : NULL;
    for (const struct CUgraphNode_st *node = graph->nodes; fresh && node; node = node->next) {
        struct CUgraphNode_st *twin = calloc(1, sizeof *twin);
        CUgraph child = twin && node->content.child ? copy(node->content.child) : NULL;
        if (!twin || (node->content.child && !child)) {
            free(twin);
            graph_delete(fresh);
            return NULL;
        }
        twin->graph = fresh;
        twin->content = node->content;
        twin->content.child = child;
        *end = twin;
        end = &twin->next;
        fresh->count++;
    }
    return fresh;
}

EXPORT CUresult cuGraphClone(CUgraph *clone, CUgraph graph)
{
    struct cuda_call call;
    CUresult result = cuda_begin(&call, __func__);
    if (result == CUDA_SUCCESS && (!clone || !graph))
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS && has_memory(graph))
        result = CUDA_ERROR_NOT_SUPPORTED;
    if (result == CUDA_SUCCESS)
        result = (*clone = copy(graph)) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    return cuda_end(&call, result);
}

EXPORT CUresult cuGraphAddKernelNode_v2(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
                                        size_t count, const CUDA_KERNEL_NODE_PARAMS *kernel)
{
    struct node_content content = {.kind = GRAPH_NODE_KERNEL};
    if (kernel)
        content.function = kernel->func ? kernel->func : (CUfunction)(void *)kernel->kern;
    return add(__func__, node, graph, dependencies, count, kernel ? &content : NULL);
}

static CUresult add_allocation(const char *function, CUgraphNode *node, CUgraph graph,
                               const CUgraphNode *dependencies, size_t count,
                               CUDA_MEM_ALLOC_NODE_PARAMS *allocation)
{
    struct cuda_call call;
    struct node_content content = {0};
    const CUmemLocation *at = allocation ? &allocation->poolProps.location : NULL;
    bool domain = at && at->type == MEMORY_LOCATION_DEVICE_DOMAIN;
    CUresult result = cuda_begin(&call, function);
    if (result == CUDA_SUCCESS && (!node || !graph || !at || (at->type != MEMORY_LOCATION_DEVICE && !domain)))
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        result = graph_allocation_content(domain ? at->id & 0xFF : at->id, allocation->bytesize, &content);
    cuda_end(&call, result);
    CUdeviceptr address = result == CUDA_SUCCESS ? content.allocation->address : 0;
    if (result == CUDA_SUCCESS)
        result = add(function, node, graph, dependencies, count, &content);
    if (result == CUDA_SUCCESS)
        allocation->dptr = address;
    return result;
}

EXPORT CUresult cuGraphAddMemAllocNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
                                       size_t count, CUDA_MEM_ALLOC_NODE_PARAMS *allocation)
{
    return add_allocation(__func__, node, graph, dependencies, count, allocation);
}

EXPORT CUresult cuGraphAddMemFreeNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
                                      size_t count, CUdeviceptr address)
{
    const struct node_content content = {.kind = GRAPH_NODE_FREE, .address = address};
    return add(__func__, node, graph, dependencies, count, &content);
}

static CUresult add_child(const char *function, CUgraphNode *node, CUgraph graph,
                          const CUgraphNode *dependencies, size_t count, CUgraph child)
{
    struct cuda_call call;
    struct node_content content = {.kind = GRAPH_NODE_CHILD_GRAPH};
    CUresult result = cuda_begin(&call, function);
    if (result == CUDA_SUCCESS && (!node || !graph || !child))
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS && has_memory(child))
        result = CUDA_ERROR_NOT_SUPPORTED;
    if (result == CUDA_SUCCESS)
        result = (content.child = copy(child)) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    cuda_end(&call, result);
    return result == CUDA_SUCCESS ? add(function, node, graph, dependencies, count, &content) : result;
}

EXPORT CUresult cuGraphAddChildGraphNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
                                         size_t count, CUgraph child)
{
    return add_child(__func__, node, graph, dependencies, count, child);
}

static CUresult add_any(const char *function, CUgraphNode *node, CUgraph graph,
                        const CUgraphNode *dependencies, size_t count, CUgraphNodeParams *parameters)
{
    if (!parameters)
        return add(function, node, graph, dependencies, count, NULL);
    struct node_content content = {.kind = parameters->type};
    if (parameters->type == GRAPH_NODE_ALLOCATION)
        return add_allocation(function, node, graph, dependencies, count, &parameters->of.alloc);
    if (parameters->type == GRAPH_NODE_CHILD_GRAPH)
        return add_child(function, node, graph, dependencies, count, parameters->of.child);
    if (parameters->type == GRAPH_NODE_KERNEL)
        memcpy(&content.function, parameters->of.bytes, sizeof content.function); /* its first member */
    if (parameters->type == GRAPH_NODE_FREE)
        memcpy(&content.address, parameters->of.bytes, sizeof content.address);
    return add(function, node, graph, dependencies, count, &content);
}

EXPORT CUresult cuGraphAddNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
                               size_t count, CUgraphNodeParams *parameters)
{
    return add_any(__func__, node, graph, dependencies, count, parameters);
}

EXPORT CUresult cuGraphAddNode_v2(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
                                  const CUgraphEdgeData *edges, size_t count, CUgraphNodeParams *parameters)
{
    (void)edges;
    return add_any(__func__, node, graph, dependencies, count, parameters);
}

EXPORT CUresult cuGraphAddNode_v3(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
                                  const CUgraphEdgeData *edges, size_t count, CUgraphNodeParams *parameters)
{
    (void)edges;
    return add_any(__func__, node, graph, dependencies, count, parameters);
}
