/* A thread that is cancelled as it launches a graph of two devices, of which the second has no room for it yet.
 *
 * DRIVER   a CUDA driver whose graphs hold 64 MiB of the second device for good, and nothing of the first
 *
 * Otherwise the program: prints how the thread ended, and what the launch of a graph on the first device gives
 * afterwards.
 */
#include "cuda_abi.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>

#ifdef DRIVER
#define EXPORTED __attribute__((visibility("default")))

static uintptr_t graphs;

EXPORTED CUresult cuInit(unsigned flags)
{
    return flags ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

EXPORTED CUresult cuDeviceGetCount(int *count)
{
    *count = 2;
    return CUDA_SUCCESS;
}

EXPORTED CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice device)
{
    *uuid = (CUuuid){{(unsigned char)(device + 1)}};
    return CUDA_SUCCESS;
}

EXPORTED CUresult cuCtxGetDevice(CUdevice *device)
{
    *device = 0;
    return CUDA_SUCCESS;
}

EXPORTED CUresult cuGraphCreate(CUgraph *graph, unsigned flags)
{
    *graph = (CUgraph)++graphs;
    return flags ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

EXPORTED CUresult cuGraphAddMemAllocNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
                                         size_t count, CUDA_MEM_ALLOC_NODE_PARAMS *allocation)
{
    (void)graph, (void)dependencies, (void)count;
    *node = NULL;
    allocation->dptr = (uint64_t)(allocation->poolProps.location.id + 1) << 40;
    return CUDA_SUCCESS;
}

EXPORTED CUresult cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, unsigned long long flags)
{
    *exec = (CUgraphExec)graph;
    return flags ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

EXPORTED CUresult cuDeviceGetGraphMemAttribute(CUdevice device, CUgraphMem_attribute attribute, void *value)
{
    *(uint64_t *)value = attribute == GRAPH_MEMORY_RESERVED_BYTES && device == 1 ? (uint64_t)64 << 20 : 0;
    return CUDA_SUCCESS;
}

EXPORTED CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream)
{
    (void)stream;
    return exec ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
#else
static void *driver;

#define CUDA(name) ((__typeof__(&name))dlsym(driver, #name))

/* Of so much on each device. */
static CUgraphExec taking(size_t first_mib, size_t second_mib)
{
    const size_t mib[] = {first_mib, second_mib};
    CUgraph graph;
    CUgraphExec exec = NULL;
    CUDA(cuGraphCreate)(&graph, 0);
    for (int device = 0; device < 2; device++) {
        CUDA_MEM_ALLOC_NODE_PARAMS params = {
            .poolProps = {.allocType = 1, .location = {.type = 1, .id = device}}, .bytesize = mib[device] << 20};
        CUgraphNode node;
        if (mib[device])
            CUDA(cuGraphAddMemAllocNode)(&node, graph, NULL, 0, &params);
    }
    CUDA(cuGraphInstantiateWithFlags)(&exec, graph, 0);
    return exec;
}

static void *launch_cancelled(void *exec)
{
    pthread_cancel(pthread_self());
    CUDA(cuGraphLaunch)((CUgraphExec)exec, NULL);
    pthread_testcancel();
    return NULL;
}

int main(void)
{
    pthread_t thread;
    void *end;
    driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (!driver || CUDA(cuInit)(0))
        return 1;
    CUgraphExec both = taking(60, 90), first = taking(60, 0);
    pthread_create(&thread, NULL, launch_cancelled, both);
    pthread_join(thread, &end);
    CUresult launched = CUDA(cuGraphLaunch)(first, NULL);
    printf("%s %d\n", end == PTHREAD_CANCELED ? "cancelled" : "not cancelled", launched);
    return 0;
}
#endif
