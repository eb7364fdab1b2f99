/* Memory that graphs allocate. */
#include "real.h"

EXPORT CUresult cuGraphAddMemAllocNode(CUgraphNode *a, CUgraph b, const CUgraphNode *c, size_t d,
                                       CUDA_MEM_ALLOC_NODE_PARAMS *e)
{
    const struct real_cuda *real = real_cuda();
    return real && real->cuGraphAddMemAllocNode ? real->cuGraphAddMemAllocNode(a, b, c, d, e)
                                                : CUDA_ERROR_NOT_INITIALIZED;
}

EXPORT CUresult cuGraphAddNode(CUgraphNode *a, CUgraph b, const CUgraphNode *c, size_t d,
                               CUgraphNodeParams *e)
{
    const struct real_cuda *real = real_cuda();
    return real && real->cuGraphAddNode ? real->cuGraphAddNode(a, b, c, d, e) : CUDA_ERROR_NOT_INITIALIZED;
}

EXPORT CUresult cuGraphAddNode_v2(CUgraphNode *a, CUgraph b, const CUgraphNode *c, const CUgraphEdgeData *d,
                                  size_t e, CUgraphNodeParams *f)
{
    const struct real_cuda *real = real_cuda();
    return real && real->cuGraphAddNode_v2 ? real->cuGraphAddNode_v2(a, b, c, d, e, f)
                                           : CUDA_ERROR_NOT_INITIALIZED;
}

EXPORT CUresult cuGraphAddNode_v3(CUgraphNode *a, CUgraph b, const CUgraphNode *c, const CUgraphEdgeData *d,
                                  size_t e, CUgraphNodeParams *f)
{
    const struct real_cuda *real = real_cuda();
    return real && real->cuGraphAddNode_v3 ? real->cuGraphAddNode_v3(a, b, c, d, e, f)
                                           : CUDA_ERROR_NOT_INITIALIZED;
}

EXPORT CUresult cuGraphAddChildGraphNode(CUgraphNode *a, CUgraph b, const CUgraphNode *c, size_t d, CUgraph e)
{
    const struct real_cuda *real = real_cuda();
    return real && real->cuGraphAddChildGraphNode ? real->cuGraphAddChildGraphNode(a, b, c, d, e)
                                                  : CUDA_ERROR_NOT_INITIALIZED;
}

EXPORT CUresult cuGraphClone(CUgraph *a, CUgraph b)
{
    const struct real_cuda *real = real_cuda();
    return real && real->cuGraphClone ? real->cuGraphClone(a, b) : CUDA_ERROR_NOT_INITIALIZED;
}

EXPORT CUresult cuGraphDestroy(CUgraph a)
{
    const struct real_cuda *real = real_cuda();
    return real && real->cuGraphDestroy ? real->cuGraphDestroy(a) : CUDA_ERROR_NOT_INITIALIZED;
}

EXPORT CUresult cuGraphInstantiate(CUgraphExec *a, CUgraph b, CUgraphNode *c, char *d, size_t e)
{
    const struct real_cuda *real = real_cuda();
    return real && real->cuGraphInstantiate ? real->cuGraphInstantiate(a, b, c, d, e)
                                            : CUDA_ERROR_NOT_INITIALIZED;
}

EXPORT CUresult cuGraphInstantiate_v2(CUgraphExec *a, CUgraph b, CUgraphNode *c, char *d, size_t e)
{
    const struct real_cuda *real = real_cuda();
    return real && real->cuGraphInstantiate_v2 ? real->cuGraphInstantiate_v2(a, b, c, d, e)
                                               : CUDA_ERROR_NOT_INITIALIZED;
}

EXPORT CUresult cuGraphInstantiateWithFlags(CUgraphExec *a, CUgraph b, unsigned long long c)
{
    const struct real_cuda *real = real_cuda();
    return real && real->cuGraphInstantiateWithFlags ? real->cuGraphInstantiateWithFlags(a, b, c)
                                                     : CUDA_ERROR_NOT_INITIALIZED;
}

EXPORT CUresult cuGraphInstantiateWithParams(CUgraphExec *a, CUgraph b, CUDA_GRAPH_INSTANTIATE_PARAMS *c)
{
    const struct real_cuda *real = real_cuda();
    return real && real->cuGraphInstantiateWithParams ? real->cuGraphInstantiateWithParams(a, b, c)
                                                      : CUDA_ERROR_NOT_INITIALIZED;
}

EXPORT CUresult cuGraphInstantiateWithParams_ptsz(CUgraphExec *a, CUgraph b, CUDA_GRAPH_INSTANTIATE_PARAMS *c)
{
    const struct real_cuda *real = real_cuda();
    return real && real->cuGraphInstantiateWithParams_ptsz ? real->cuGraphInstantiateWithParams_ptsz(a, b, c)
                                                           : CUDA_ERROR_NOT_INITIALIZED;
}

EXPORT CUresult cuGraphExecDestroy(CUgraphExec a)
{
    const struct real_cuda *real = real_cuda();
    return real && real->cuGraphExecDestroy ? real->cuGraphExecDestroy(a) : CUDA_ERROR_NOT_INITIALIZED;
}

EXPORT CUresult cuGraphExecUpdate(CUgraphExec a, CUgraph b, CUgraphNode *c, CUgraphExecUpdateResult *d)
{
    const struct real_cuda *real = real_cuda();
    return real && real->cuGraphExecUpdate ? real->cuGraphExecUpdate(a, b, c, d) : CUDA_ERROR_NOT_INITIALIZED;
}

EXPORT CUresult cuGraphExecUpdate_v2(CUgraphExec a, CUgraph b, CUgraphExecUpdateResultInfo *c)
{
    const struct real_cuda *real = real_cuda();
    return real && real->cuGraphExecUpdate_v2 ? real->cuGraphExecUpdate_v2(a, b, c)
                                              : CUDA_ERROR_NOT_INITIALIZED;
}

EXPORT CUresult cuStreamEndCapture(CUstream a, CUgraph *b)
{
    const struct real_cuda *real = real_cuda();
    return real && real->cuStreamEndCapture ? real->cuStreamEndCapture(a, b) : CUDA_ERROR_NOT_INITIALIZED;
}

EXPORT CUresult cuStreamEndCapture_ptsz(CUstream a, CUgraph *b)
{
    const struct real_cuda *real = real_cuda();
    return real && real->cuStreamEndCapture_ptsz ? real->cuStreamEndCapture_ptsz(a, b)
                                                 : CUDA_ERROR_NOT_INITIALIZED;
}

EXPORT CUresult cuGraphUpload(CUgraphExec a, CUstream b)
{
    const struct real_cuda *real = real_cuda();
    return real && real->cuGraphUpload ? real->cuGraphUpload(a, b) : CUDA_ERROR_NOT_INITIALIZED;
}

EXPORT CUresult cuGraphUpload_ptsz(CUgraphExec a, CUstream b)
{
    const struct real_cuda *real = real_cuda();
    return real && real->cuGraphUpload_ptsz ? real->cuGraphUpload_ptsz(a, b) : CUDA_ERROR_NOT_INITIALIZED;
}

EXPORT CUresult cuDeviceGraphMemTrim(CUdevice a)
{
    const struct real_cuda *real = real_cuda();
    return real && real->cuDeviceGraphMemTrim ? real->cuDeviceGraphMemTrim(a) : CUDA_ERROR_NOT_INITIALIZED;
}
