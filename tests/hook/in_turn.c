/* Threads, one after the other, that launch on several GPUs in turn, each so many times in a row:
 *
 *     in_turn THREADS GPUS TURNS IN_A_ROW [fork]
 *
 * With `fork` each forks in the middle, and its child ends the thread, which is all that there is of it.
 * Prints the first CUresult that was not 0, or status of a child that did not end well.
 */
#include "cuda_abi.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MOST_GPUS = 8 };

static void *driver;
static CUcontext contexts[MOST_GPUS];
static CUfunction functions[MOST_GPUS];
static int gpus, turns, in_a_row, forks, first_bad;

#define CUDA(name) ((__typeof__(&name))dlsym(driver, #name))

static void note(int result)
{
    first_bad = first_bad ? first_bad : result;
}

static void take_turn(void)
{
    for (int gpu = 0; gpu < gpus; gpu++) {
        note((int)CUDA(cuCtxSetCurrent)(contexts[gpu]));
        for (int i = 0; i < in_a_row; i++)
            note((int)CUDA(cuLaunchKernel)(functions[gpu], 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL));
    }
}

static void *work(void *unused)
{
    (void)unused;
    for (int turn = 0; turn < turns; turn++) {
        take_turn();
        pid_t child = forks && turn == turns / 2 ? fork() : -1;
        int status;
        if (child == 0)
            return NULL;
        if (child > 0 && waitpid(child, &status, 0) == child)
            note(status);
    }
    return NULL;
}

int main(int count, char **words)
{
    if (count < 5 || !(driver = dlopen("libcuda.so.1", RTLD_NOW)))
        return 1;
    gpus = atoi(words[2]), turns = atoi(words[3]), in_a_row = atoi(words[4]), forks = count > 5;
    note((int)CUDA(cuInit)(0));
    for (int gpu = 0; gpu < gpus && gpu < MOST_GPUS; gpu++) {
        CUmodule module;
        note((int)CUDA(cuDevicePrimaryCtxRetain)(&contexts[gpu], gpu));
        note((int)CUDA(cuCtxSetCurrent)(contexts[gpu]));
        note((int)CUDA(cuModuleLoadData)(&module, "image"));
        note((int)CUDA(cuModuleGetFunction)(&functions[gpu], module, "kernel"));
    }
    for (int i = 0; i < atoi(words[1]); i++) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, work, NULL))
            return 2;
        pthread_join(thread, NULL);
    }
    printf("%d\n", first_bad);
    return 0;
}
