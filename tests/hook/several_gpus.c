/* A program on several GPUs, in virtual time:
 *
 *     several_gpus PARTIES RANK GPUS MS
 *
 * Of each GPU two threads launch on it, one on the default stream and one on a stream of its own, and one
 * more thread launches on all GPUs in turn; all of them wait after a few launches, and go on for MS. Prints
 * how many launches were made on each GPU, and the first CUresult that was not 0.
 */
#include "cuda_abi.h"
#include "virtual_time.c"

#include <stdint.h>
#include <stdio.h>

enum { MOST_GPUS = 8, THREADS_OF_A_GPU = 2, MOST_THREADS = MOST_GPUS * THREADS_OF_A_GPU + 1, IN_A_ROW = 4 };

static void *driver;
static int gpus;
static uint64_t end_ns;
static CUcontext contexts[MOST_GPUS];
static CUfunction functions[MOST_GPUS];
static _Atomic unsigned long launches[MOST_GPUS];
static _Atomic int first_result;

#define CUDA(name) ((__typeof__(&name))dlsym(driver, #name))

static int good(CUresult result)
{
    int none = 0;
    if (result)
        atomic_compare_exchange_strong(&first_result, &none, (int)result);
    return !result;
}

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

static int launch(int gpu, CUstream stream)
{
    int made = good(CUDA(cuLaunchKernel)(functions[gpu], 1, 1, 1, 32, 1, 1, 0, stream, NULL, NULL));
    atomic_fetch_add(&launches[gpu], (unsigned long)made);
    return made;
}

static void *work(void *argument)
{
    int number = (int)(intptr_t)argument, gpu = number % gpus;
    CUstream stream = NULL;
    int going_on = good(CUDA(cuCtxSetCurrent)(contexts[gpu]));
    if (number >= gpus)
        going_on = going_on && good(CUDA(cuStreamCreate)(&stream, 1));
    while (going_on && now_ns() < end_ns) {
        for (int i = 0; going_on && i < IN_A_ROW; i++)
            going_on = launch(gpu, stream);
        going_on = going_on && good(CUDA(cuStreamSynchronize)(stream));
    }
    return NULL;
}

static void *roam(void *unused)
{
    int going_on = 1;
    (void)unused;
    while (going_on && now_ns() < end_ns) {
        for (int gpu = 0; going_on && gpu < gpus; gpu++)
            going_on = good(CUDA(cuCtxSetCurrent)(contexts[gpu])) && launch(gpu, NULL);
        for (int gpu = 0; going_on && gpu < gpus; gpu++)
            going_on = good(CUDA(cuCtxSetCurrent)(contexts[gpu])) && good(CUDA(cuCtxSynchronize)());
    }
    return NULL;
}

static int start(int gpu)
{
    CUmodule module;
    return good(CUDA(cuDevicePrimaryCtxRetain)(&contexts[gpu], gpu))
        && good(CUDA(cuCtxSetCurrent)(contexts[gpu])) && good(CUDA(cuModuleLoadData)(&module, "image"))
        && good(CUDA(cuModuleGetFunction)(&functions[gpu], module, "kernel"));
}

int main(int count, char **words)
{
    pthread_t threads[MOST_THREADS];
    int begun = 0;
    gpus = count == 5 ? atoi(words[3]) : 0;
    driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (!driver || gpus < 1 || gpus > MOST_GPUS
        || !virtual_time_join(driver, (unsigned)atoi(words[1]), (unsigned)atoi(words[2])))
        return 1;
    end_ns = now_ns() + strtoull(words[4], NULL, 10) * 1000000;
    int started = good(CUDA(cuInit)(0));
    for (int gpu = 0; started && gpu < gpus; gpu++)
        started = start(gpu);
    for (; started && begun < gpus * THREADS_OF_A_GPU; begun++)
        started = !pthread_create(&threads[begun], NULL, work, (void *)(intptr_t)begun);
    if (started)
        started = !pthread_create(&threads[begun++], NULL, roam, NULL);
    for (int i = 0; i < begun; i++)
        pthread_join(threads[i], NULL);
    printf("{\"result\": %d, \"launches\": [", atomic_load(&first_result));
    for (int gpu = 0; gpu < gpus; gpu++)
        printf("%s%lu", gpu ? ", " : "", atomic_load(&launches[gpu]));
    printf("]}\n");
    return started ? 0 : 1;
}
