/* Threads that launch the same graphs, which free at their launch what they have left, and that free it, too:
 * by a call, in a stream's order, or by a graph of a node that frees. Now and then they upload or trim.
 *
 *     graph_threads THREADS ROUNDS
 *
 * Prints how many launches were made, and how many answers were none that may be expected.
 */
#include "../../hook/cuda_abi.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

enum { GRAPHS = 5, MOST_THREADS = 64, NON_BLOCKING = 1 };

static const size_t mib[GRAPHS] = {10, 20, 33, 31, 50};
static struct {
    CUgraphExec leaves, frees;
    CUdeviceptr address;
} made[GRAPHS];
static void *driver;
static CUcontext context;
static int rounds;
static atomic_int launched, unexpected;

#define CUDA(name) ((__typeof__(&name))dlsym(driver, #name))

static CUgraphExec executable(CUgraph graph, unsigned long long flags)
{
    CUgraphExec exec = NULL;
    return CUDA(cuGraphInstantiateWithFlags)(&exec, graph, flags) == CUDA_SUCCESS ? exec : NULL;
}

static int make(int i)
{
    CUDA_MEM_ALLOC_NODE_PARAMS params = {.poolProps = {.allocType = 1, .location = {.type = 1}},
                                         .bytesize = mib[i] << 20};
    CUgraphNode node;
    CUgraph leaving, freeing;
    if (CUDA(cuGraphCreate)(&leaving, 0) || CUDA(cuGraphAddMemAllocNode)(&node, leaving, NULL, 0, &params)
        || CUDA(cuGraphCreate)(&freeing, 0)
        || CUDA(cuGraphAddMemFreeNode)(&node, freeing, NULL, 0, params.dptr))
        return 0;
    made[i].address = params.dptr;
    made[i].leaves = executable(leaving, GRAPH_INSTANTIATE_AUTO_FREE);
    made[i].frees = executable(freeing, 0);
    return made[i].leaves && made[i].frees;
}

/* What is not there cannot be freed, and what there is no room for is not had. */
static void expect(CUresult result)
{
    if (result != CUDA_SUCCESS && result != CUDA_ERROR_INVALID_VALUE && result != CUDA_ERROR_OUT_OF_MEMORY)
        atomic_fetch_add(&unexpected, 1);
}

static void step(int choice, int i, CUstream stream)
{
    CUresult result;
    switch (choice) {
    case 0:
        expect(CUDA(cuMemFree_v2)(made[i].address));
        break;
    case 1:
        expect(CUDA(cuMemFreeAsync)(made[i].address, stream));
        break;
    case 2:
        expect(CUDA(cuGraphLaunch)(made[i].frees, stream));
        break;
    case 3:
        expect(CUDA(cuGraphUpload)(made[i].leaves, stream));
        break;
    case 4:
        expect(CUDA(cuDeviceGraphMemTrim)(0));
        break;
    default:
        result = CUDA(cuGraphLaunch)(made[i].leaves, stream);
        atomic_fetch_add(&launched, result == CUDA_SUCCESS);
        expect(result);
    }
}

static void *work(void *number)
{
    unsigned seed = (unsigned)(uintptr_t)number * 7919 + 13;
    CUstream stream;
    if (CUDA(cuCtxSetCurrent)(context) || CUDA(cuStreamCreate)(&stream, NON_BLOCKING))
        return NULL;
    for (int round = 0; round < rounds; round++) {
        int choice = rand_r(&seed) % 8, i = rand_r(&seed) % GRAPHS;
        step(choice == 4 && round % 16 ? 5 : choice, i, stream);
    }
    return NULL;
}

int main(int count, char **words)
{
    int threads = count == 3 ? atoi(words[1]) : 0;
    pthread_t of[MOST_THREADS];
    rounds = count == 3 ? atoi(words[2]) : 0;
    driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (!driver || threads < 1 || threads > MOST_THREADS || CUDA(cuInit)(0)
        || CUDA(cuDevicePrimaryCtxRetain)(&context, 0) || CUDA(cuCtxSetCurrent)(context))
        return 1;
    for (int i = 0; i < GRAPHS; i++)
        if (!make(i))
            return 2;
    for (intptr_t i = 0; i < threads; i++)
        if (pthread_create(&of[i], NULL, work, (void *)i))
            return 3;
    for (int i = 0; i < threads; i++)
        pthread_join(of[i], NULL);
    printf("%d %d\n", launched, unexpected);
    return 0;
}
