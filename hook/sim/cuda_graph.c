/* Simulated CUDA driver: graphs that are built, and those that are launched. An executable graph runs as one
 * piece of work, as long as its kernels one after the other.
 */
#include "captures.h"
#include "clock.h"
#include "graph_memory.h"

#include <stdlib.h>
#include <string.h>

struct step {
    const struct CUgraphNode_st *node; /* that it was made from */
    int kind;
    CUfunction function;
    struct graph_allocation *allocation;
    CUdeviceptr address;
};

struct CUgraphExec_st {
    struct step *steps;
    size_t count;
};

/* --- building ------------------------------------------------------------------------------------------- */

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
    CUresult result = cuda_begin(&call, function);
    if (result == CUDA_SUCCESS
        && (!node || !graph || !allocation || allocation->poolProps.location.type != MEMORY_LOCATION_DEVICE))
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        result = graph_allocation_content(allocation->poolProps.location.id, allocation->bytesize, &content);
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

/* --- executables ---------------------------------------------------------------------------------------- */

static size_t steps_of(const struct CUgraph_st *graph)
{
    size_t count = graph->count;
    for (const struct CUgraphNode_st *node = graph->nodes; node; node = node->next)
        count += node->content.child ? steps_of(node->content.child) : 0;
    return count;
}

/* Fill the steps before `end`, the newest node last; gives where they begin. */
static struct step *lay_out(const struct CUgraph_st *graph, struct step *end)
{
    for (const struct CUgraphNode_st *node = graph->nodes; node; node = node->next) {
        if (node->content.child)
            end = lay_out(node->content.child, end);
        *--end = (struct step){.node = node,
                               .kind = node->content.kind,
                               .function = node->content.function,
                               .allocation = node->content.allocation,
                               .address = node->content.address};
        if (node->content.allocation)
            graph_allocation_keep(node->content.allocation);
    }
    return end;
}

static CUresult fill(struct CUgraphExec_st *executable, const struct CUgraph_st *graph)
{
    executable->count = steps_of(graph);
    executable->steps = calloc(executable->count + 1, sizeof *executable->steps);
    if (!executable->steps)
        return CUDA_ERROR_OUT_OF_MEMORY;
    lay_out(graph, executable->steps + executable->count);
    return CUDA_SUCCESS;
}

static void empty(struct CUgraphExec_st *executable)
{
    for (size_t i = 0; i < executable->count; i++)
        if (executable->steps[i].allocation)
            graph_allocation_drop(executable->steps[i].allocation);
    free(executable->steps);
}

static CUresult instantiate(const char *function, CUgraphExec *executable, CUgraph graph)
{
    struct cuda_call call;
    CUresult result = cuda_begin(&call, function);
    if (result == CUDA_SUCCESS && (!executable || !graph))
        result = CUDA_ERROR_INVALID_VALUE;
    struct CUgraphExec_st *fresh = result == CUDA_SUCCESS ? calloc(1, sizeof *fresh) : NULL;
    if (result == CUDA_SUCCESS)
        result = fresh ? fill(fresh, graph) : CUDA_ERROR_OUT_OF_MEMORY;
    if (result == CUDA_SUCCESS)
        *executable = fresh;
    else
        free(fresh);
    return cuda_end(&call, result);
}

EXPORT CUresult cuGraphInstantiate(CUgraphExec *executable, CUgraph graph, CUgraphNode *error_node, char *log,
                                   size_t log_bytes)
{
    (void)error_node, (void)log, (void)log_bytes;
    return instantiate(__func__, executable, graph);
}

EXPORT CUresult cuGraphInstantiate_v2(CUgraphExec *executable, CUgraph graph, CUgraphNode *error_node,
                                      char *log, size_t log_bytes)
{
    (void)error_node, (void)log, (void)log_bytes;
    return instantiate(__func__, executable, graph);
}

EXPORT CUresult cuGraphInstantiateWithFlags(CUgraphExec *executable, CUgraph graph, unsigned long long flags)
{
    (void)flags;
    return instantiate(__func__, executable, graph);
}

EXPORT CUresult cuGraphInstantiateWithParams(CUgraphExec *executable, CUgraph graph,
                                             CUDA_GRAPH_INSTANTIATE_PARAMS *parameters)
{
    CUresult result = instantiate(__func__, executable, parameters ? graph : NULL);
    if (parameters)
        parameters->result_out = result != CUDA_SUCCESS; /* CUDA_GRAPH_INSTANTIATE_ERROR */
    return result;
}

EXPORT CUresult cuGraphInstantiateWithParams_ptsz(CUgraphExec *executable, CUgraph graph,
                                                  CUDA_GRAPH_INSTANTIATE_PARAMS *parameters)
{
    CUresult result = instantiate(__func__, executable, parameters ? graph : NULL);
    if (parameters)
        parameters->result_out = result != CUDA_SUCCESS;
    return result;
}

EXPORT CUresult cuGraphExecDestroy(CUgraphExec executable)
{
    struct cuda_call call;
    CUresult result = cuda_begin(&call, __func__);
    if (result == CUDA_SUCCESS && !executable)
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS) {
        empty(executable);
        free(executable);
    }
    return cuda_end(&call, result);
}

/* The same kinds of nodes in the same order, or it is another graph. */
static bool same_shape(const struct CUgraphExec_st *old, const struct CUgraphExec_st *fresh)
{
    if (old->count != fresh->count)
        return false;
    for (size_t i = 0; i < old->count; i++)
        if (old->steps[i].kind != fresh->steps[i].kind)
            return false;
    return true;
}

static CUresult update(const char *function, CUgraphExec executable, CUgraph graph, int *outcome)
{
    struct cuda_call call;
    struct CUgraphExec_st fresh = {0};
    CUresult result = cuda_begin(&call, function);
    if (result == CUDA_SUCCESS && (!executable || !graph))
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        result = fill(&fresh, graph);
    if (result == CUDA_SUCCESS && !same_shape(executable, &fresh))
        result = CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
    struct CUgraphExec_st old = fresh;
    if (result == CUDA_SUCCESS) {
        old = *executable;
        *executable = fresh;
    }
    empty(&old);
    if (outcome)
        *outcome = result == CUDA_SUCCESS ? 0 : result == CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE ? 2 : 1;
    return cuda_end(&call, result);
}

EXPORT CUresult cuGraphExecUpdate(CUgraphExec executable, CUgraph graph, CUgraphNode *error_node,
                                  CUgraphExecUpdateResult *outcome)
{
    (void)error_node;
    return update(__func__, executable, graph, outcome);
}

EXPORT CUresult cuGraphExecUpdate_v2(CUgraphExec executable, CUgraph graph,
                                     CUgraphExecUpdateResultInfo *outcome)
{
    return update(__func__, executable, graph, (int *)(void *)outcome); /* its first member */
}

EXPORT CUresult cuGraphExecKernelNodeSetParams_v2(CUgraphExec executable, CUgraphNode node,
                                                  const CUDA_KERNEL_NODE_PARAMS *kernel)
{
    struct cuda_call call;
    CUresult result = cuda_begin(&call, __func__);
    struct step *step = NULL;
    for (size_t i = 0; result == CUDA_SUCCESS && executable && i < executable->count; i++)
        if (executable->steps[i].node == node && executable->steps[i].kind == GRAPH_NODE_KERNEL)
            step = &executable->steps[i];
    if (result == CUDA_SUCCESS && (!step || !kernel))
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        step->function = kernel->func ? kernel->func : (CUfunction)(void *)kernel->kern;
    return cuda_end(&call, result);
}

/* --- launching ------------------------------------------------------------------------------------------ */

/* Give back what the steps before `end` allocated. */
static void undo(const struct CUgraphExec_st *executable, size_t end)
{
    for (size_t i = 0; i < end; i++)
        if (executable->steps[i].allocation)
            sim_graph_memory_free(executable->steps[i].allocation->address);
}

static CUresult run_memory(const struct CUgraphExec_st *executable)
{
    for (size_t i = 0; i < executable->count; i++) {
        const struct step *step = &executable->steps[i];
        CUresult result =
            step->allocation ? sim_graph_memory_allocate(step->allocation->address) : CUDA_SUCCESS;
        if (result != CUDA_SUCCESS) {
            undo(executable, i);
            return result;
        }
        if (step->kind == GRAPH_NODE_FREE)
            sim_graph_memory_free(step->address);
    }
    return CUDA_SUCCESS;
}

static uint64_t length_ns(const struct cuda_call *call, const struct CUgraphExec_st *executable)
{
    uint64_t ns = 0;
    for (size_t i = 0; i < executable->count && functions_take_time(call->node); i++)
        if (executable->steps[i].kind == GRAPH_NODE_KERNEL)
            ns += function_draw_ns(call->node, executable->steps[i].function);
    return ns;
}

static CUresult launch(const char *function, CUgraphExec executable, CUstream stream, bool per_thread)
{
    struct stream_call call;
    CUresult result = stream_begin(&call, function, stream, per_thread);
    bool capturing = false;
    if (result == CUDA_SUCCESS && !executable)
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        result = capture_work(call.stream, &capturing);
    if (result == CUDA_SUCCESS)
        clock_spend(1000ULL * call.call.node->launch_us); /* the GPU hears of it when the call is nearly over */
    if (result == CUDA_SUCCESS && capturing) { /* a launch of a graph becomes its nodes */
        for (size_t i = 0; i < executable->count && result == CUDA_SUCCESS; i++)
            if (executable->steps[i].kind == GRAPH_NODE_KERNEL)
                result = capture_node(call.stream,
                                      (struct node_content){.kind = GRAPH_NODE_KERNEL,
                                                            .function = executable->steps[i].function},
                                      NULL);
    } else if (result == CUDA_SUCCESS) {
        result = run_memory(executable);
        uint64_t ns = result == CUDA_SUCCESS ? length_ns(&call.call, executable) : 0;
        if (ns)
            result = stream_push(&call, ns) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    }
    return cuda_end(&call.call, result);
}

EXPORT CUresult cuGraphLaunch(CUgraphExec executable, CUstream stream)
{
    return launch(__func__, executable, stream, false);
}

EXPORT CUresult cuGraphLaunch_ptsz(CUgraphExec executable, CUstream stream)
{
    return launch(__func__, executable, stream, true);
}

static CUresult upload(const char *function, CUgraphExec executable, CUstream stream, bool per_thread)
{
    struct stream_call call;
    CUresult result = stream_begin(&call, function, stream, per_thread);
    if (result == CUDA_SUCCESS && !executable)
        result = CUDA_ERROR_INVALID_VALUE;
    return cuda_end(&call.call, result);
}

EXPORT CUresult cuGraphUpload(CUgraphExec executable, CUstream stream)
{
    return upload(__func__, executable, stream, false);
}

EXPORT CUresult cuGraphUpload_ptsz(CUgraphExec executable, CUstream stream)
{
    return upload(__func__, executable, stream, true);
}
