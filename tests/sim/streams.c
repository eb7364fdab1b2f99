/* Threads that use streams, events, captures and graphs of one GPU at once, and destroy what others may be
 * waiting for. Says "done".
 */
#include "../../hook/cuda_abi.h"

#include <pthread.h>
#include <stdio.h>

enum { THREADS = 4, TURNS = 300 };

static CUcontext context;
static CUfunction function;

static void launch(CUstream stream)
{
    cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL);
}

static void capture_and_run(void)
{
    CUstream stream;
    CUgraph graph;
    CUgraphExec executable;
    cuStreamCreate(&stream, 1);
    cuStreamBeginCapture_v2(stream, 2);
    launch(stream);
    if (cuStreamEndCapture(stream, &graph) == CUDA_SUCCESS) { /* unless another thread synchronised */
        cuGraphInstantiateWithFlags(&executable, graph, 0);
        cuGraphLaunch(executable, stream);
        cuGraphExecDestroy(executable);
        cuGraphDestroy(graph);
    }
    cuStreamDestroy_v2(stream);
}

static void *work(void *unused)
{
    CUstream apart, blocking;
    CUevent before, after;
    float ms;
    cuCtxSetCurrent(context);
    cuStreamCreate(&apart, 1);
    cuStreamCreate(&blocking, 0);
    cuEventCreate(&before, 0);
    cuEventCreate(&after, 0);
    for (int i = 0; i < TURNS; i++) {
        cuEventRecord(before, apart);
        launch(apart);
        launch(NULL);
        cuEventRecord(after, apart);
        cuStreamWaitEvent(blocking, after, 0);
        launch(blocking);
        if (i % 10 == 0 && cuEventSynchronize(after) == CUDA_SUCCESS)
            cuEventElapsedTime(&ms, before, after);
        if (i % 50 == 0)
            cuCtxSynchronize();
        if (i % 7 == 0)
            capture_and_run();
    }
    cuEventDestroy_v2(before);
    cuEventDestroy_v2(after);
    cuStreamDestroy_v2(apart);
    cuStreamDestroy_v2(blocking);
    return unused;
}

int main(void)
{
    CUmodule module;
    pthread_t threads[THREADS];
    if (cuInit(0) != CUDA_SUCCESS || cuDevicePrimaryCtxRetain(&context, 0) != CUDA_SUCCESS)
        return 1;
    cuCtxSetCurrent(context);
    cuModuleLoadData(&module, "image");
    cuModuleGetFunction(&function, module, "kernel");
    for (int i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, work, NULL);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    printf("done\n");
    return 0;
}
