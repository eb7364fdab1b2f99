/* Simulated CUDA driver: graphs as lists of nodes with what each depends on. Not thread safe for one graph,
 * as the driver says of its own.
 */
#ifndef VGPU_SIM_GRAPHS_H
#define VGPU_SIM_GRAPHS_H

#include "functions.h"

enum { GRAPH_NODE_COPY = 1 };

struct node_content {
    int kind; /* CUgraphNodeType */
    CUfunction function; /* of GRAPH_NODE_KERNEL */
    struct graph_allocation *allocation; /* of GRAPH_NODE_ALLOCATION */
    CUdeviceptr address; /* of GRAPH_NODE_FREE */
    CUgraph child; /* of GRAPH_NODE_CHILD_GRAPH, its own */
};

struct CUgraphNode_st {
    struct CUgraphNode_st *next; /* newest first */
    CUgraph graph;
    struct node_content content;
    struct CUgraphNode_st **dependencies;
    size_t dependency_count;
    unsigned mark; /* of a walk */
};

struct CUgraph_st {
    struct CUgraphNode_st *nodes;
    size_t count;
    unsigned marks;
};

/* An address that graphs and their executables share; it ceases with the last of them. */
struct graph_allocation {
    CUdeviceptr address;
    CUdevice device;
    uint64_t bytes;
    unsigned references;
};

CUgraph graph_new(void);
void graph_delete(CUgraph graph);

/* NULL when there is no memory. Takes over what is in `content`. */
struct CUgraphNode_st *graph_add(CUgraph graph, struct node_content content,
                                 struct CUgraphNode_st *const *dependencies, size_t count);

/* The node that was made as number `position`, recaptured: NULL when it was another kind, depended on others,
 * or does something else with memory. What else it does is changed. Takes over what is in `content`. */
struct CUgraphNode_st *graph_recapture(CUgraph graph, size_t position, struct node_content content,
                                       struct CUgraphNode_st *const *dependencies, size_t count);

/* Whether `node` is one of, or before, the `count` nodes at `tips`. */
bool graph_precedes(CUgraph graph, const struct CUgraphNode_st *node, struct CUgraphNode_st *const *tips,
                    size_t count);

void graph_allocation_keep(struct graph_allocation *allocation);
void graph_allocation_drop(struct graph_allocation *allocation);

/* A node that allocates on this device. */
CUresult graph_allocation_content(CUdevice device, uint64_t bytes, struct node_content *content);

#endif
