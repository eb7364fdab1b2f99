/* Simulated CUDA driver: executable graphs. One runs as a piece of work as long as its kernels one after the
 * other, none of which meets others; its memory comes and goes at the launch.
 */
#include "captures.h"
#include "clock.h"
#include "graph_memory.h"

#include <stdlib.h>

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
    bool frees_on_launch; /* what it has left, itself */
};

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

static CUresult instantiate(const char *function, CUgraphExec *executable, CUgraph graph, cuuint64_t flags)
{
    struct cuda_call call;
    CUresult result = cuda_begin(&call, function);
    const cuuint64_t contrary = GRAPH_INSTANTIATE_AUTO_FREE | GRAPH_INSTANTIATE_DEVICE_LAUNCH;
    if (result == CUDA_SUCCESS && (!executable || !graph || (flags & contrary) == contrary))
        result = CUDA_ERROR_INVALID_VALUE;
    struct CUgraphExec_st *fresh = result == CUDA_SUCCESS ? calloc(1, sizeof *fresh) : NULL;
    if (result == CUDA_SUCCESS)
        result = fresh ? fill(fresh, graph) : CUDA_ERROR_OUT_OF_MEMORY;
    if (result == CUDA_SUCCESS) {
        fresh->frees_on_launch = flags & GRAPH_INSTANTIATE_AUTO_FREE;
        *executable = fresh;
    } else {
        free(fresh);
    }
    return cuda_end(&call, result);
}

EXPORT CUresult cuGraphInstantiate(CUgraphExec *executable, CUgraph graph, CUgraphNode *error_node, char *log,
                                   size_t log_bytes)
{
    (void)error_node, (void)log, (void)log_bytes;
    return instantiate(__func__, executable, graph, 0);
}

EXPORT CUresult cuGraphInstantiate_v2(CUgraphExec *executable, CUgraph graph, CUgraphNode *error_node,
                                      char *log, size_t log_bytes)
{
    (void)error_node, (void)log, (void)log_bytes;
    return instantiate(__func__, executable, graph, 0);
}

EXPORT CUresult cuGraphInstantiateWithFlags(CUgraphExec *executable, CUgraph graph, unsigned long long flags)
{
    return instantiate(__func__, executable, graph, flags);
}

EXPORT CUresult cuGraphInstantiateWithParams(CUgraphExec *executable, CUgraph graph,
                                             CUDA_GRAPH_INSTANTIATE_PARAMS *parameters)
{
    CUresult result =
        instantiate(__func__, executable, parameters ? graph : NULL, parameters ? parameters->flags : 0);
    if (parameters)
        parameters->result_out = result != CUDA_SUCCESS; /* CUDA_GRAPH_INSTANTIATE_ERROR */
    return result;
}

EXPORT CUresult cuGraphInstantiateWithParams_ptsz(CUgraphExec *executable, CUgraph graph,
                                                  CUDA_GRAPH_INSTANTIATE_PARAMS *parameters)
{
    CUresult result =
        instantiate(__func__, executable, parameters ? graph : NULL, parameters ? parameters->flags : 0);
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
        fresh.frees_on_launch = executable->frees_on_launch;
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

/* What was left by an earlier launch must have been freed, or be freed now: else nothing of the graph runs.
 */
static CUresult run_memory(const struct CUgraphExec_st *executable)
{
    for (size_t i = 0; i < executable->count; i++)
        if (executable->steps[i].allocation && !executable->frees_on_launch
            && sim_graph_memory_live(executable->steps[i].allocation->address))
            return CUDA_ERROR_INVALID_VALUE;
    if (executable->frees_on_launch)
        undo(executable, executable->count);
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
            ns += function_draw_ns(call->node, executable->steps[i].function, call->gpu->number);
    return ns;
}

/* A launch into a capture becomes one node: a graph of the same steps, with the same memory. */
static CUresult capture_steps(struct CUstream_st *stream, const struct CUgraphExec_st *executable)
{
    struct node_content content = {.kind = GRAPH_NODE_CHILD_GRAPH, .child = graph_new()};
    for (size_t i = 0; content.child && i < executable->count; i++) {
        const struct step *step = &executable->steps[i];
        struct node_content part = {.kind = step->kind,
                                    .function = step->function,
                                    .allocation = step->allocation,
                                    .address = step->address};
        if (part.allocation)
            graph_allocation_keep(part.allocation);
        if (!graph_add(content.child, part, NULL, 0)) {
            graph_delete(content.child);
            content.child = NULL;
        }
    }
    return content.child ? capture_node(stream, content, NULL) : CUDA_ERROR_OUT_OF_MEMORY;
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
        clock_spend(1000ULL
                    * call.call.node->launch_us); /* the GPU hears of it when the call is nearly over */
    if (result == CUDA_SUCCESS && capturing) {
        result = capture_steps(call.stream, executable);
    } else if (result == CUDA_SUCCESS) {
        result = run_memory(executable);
        uint64_t ns = result == CUDA_SUCCESS ? length_ns(&call.call, executable) : 0;
        if (ns)
            result = stream_push(&call, ns, NO_MEETING) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
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
