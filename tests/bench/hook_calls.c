/* What one call costs, in nanoseconds of this thread's processor time: prints one JSON object.
 *
 *   hook_calls alloc | info | launch | dlsym[_passed] | proc_address[_passed] [OTHERS [LIVE_BLOCKS
 *       [THREADS]]]
 *
 * OTHERS processes have joined the container before and hold some memory; LIVE_BLOCKS were allocated and not
 * freed; THREADS wait. Run it with and without the hook; the difference is the hook's. The driver is whatever libcuda.so.1
 * is found first. The figure is the median of 15 rounds, with the least and the most.
 */
#include "../../hook/cuda_abi.h"

#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { ROUNDS = 15, MOST_OTHERS = 1000, BYTES = 4096 };

static struct {
    CUresult (*cuInit)(unsigned);
    CUresult (*cuDevicePrimaryCtxRetain)(CUcontext *, CUdevice);
    CUresult (*cuCtxSetCurrent)(CUcontext);
    CUresult (*cuMemAlloc_v2)(CUdeviceptr *, size_t);
    CUresult (*cuMemFree_v2)(CUdeviceptr);
    CUresult (*cuMemGetInfo_v2)(size_t *, size_t *);
    CUresult (*cuLaunchKernel)(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                               unsigned, CUstream, void **, void **);
    CUresult (*cuGetProcAddress_v2)(const char *, void **, int, cuuint64_t, int *);
} cuda;
static void *library;

static void fail(const char *what, int result)
{
    fprintf(stderr, "hook_calls: %s: %d\n", what, result);
    _exit(1);
}

static void *must_find(const char *name)
{
    void *found = dlsym(library, name);
    if (!found)
        fail(name, 0);
    return found;
}

static void load(void)
{
    library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!library)
        fail(dlerror(), 0);
#define FIND(name) *(void **)&cuda.name = must_find(#name)
    FIND(cuInit);
    FIND(cuDevicePrimaryCtxRetain);
    FIND(cuCtxSetCurrent);
    FIND(cuMemAlloc_v2);
    FIND(cuMemFree_v2);
    FIND(cuMemGetInfo_v2);
    FIND(cuLaunchKernel);
    FIND(cuGetProcAddress_v2);
}

static void start(void)
{
    CUcontext context = NULL;
    CUresult result = cuda.cuInit(0);
    if (result == 0)
        result = cuda.cuDevicePrimaryCtxRetain(&context, 0);
    if (result == 0)
        result = cuda.cuCtxSetCurrent(context);
    if (result != 0)
        fail("cuInit", result);
}

/* Join the container, hold a little, and wait for the parent to end. */
static void be_another(int ready)
{
    CUdeviceptr address;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    load();
    start();
    if (cuda.cuMemAlloc_v2(&address, BYTES) != 0 || write(ready, "x", 1) != 1)
        _exit(1);
    for (;;)
        pause();
}

static void start_others(int count, pid_t *pids)
{
    int ready[2];
    char byte;
    if (pipe(ready) != 0)
        fail("pipe", 0);
    for (int i = 0; i < count; i++) {
        pids[i] = fork();
        if (pids[i] == 0)
            be_another(ready[1]);
    }
    close(ready[1]);
    for (int i = 0; i < count; i++)
        if (read(ready[0], &byte, 1) != 1)
            fail("another process does not start", i);
}

static double now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

static void alloc_and_free(void)
{
    CUdeviceptr address;
    if (cuda.cuMemAlloc_v2(&address, BYTES) != 0 || cuda.cuMemFree_v2(address) != 0)
        fail("cuMemAlloc", 0);
}

static void info(void)
{
    size_t room, total;
    cuda.cuMemGetInfo_v2(&room, &total);
}

static void launch(void)
{
    cuda.cuLaunchKernel((CUfunction)(void *)&cuda, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL);
}

/* In turn, those that the hook has functions for, and others. */
enum { NAMES = 4 };
static const struct {
    const char *symbol, *name;
} hooked[NAMES] = {{"cuMemAlloc_v2", "cuMemAlloc"},
                   {"cuLaunchKernel", "cuLaunchKernel"},
                   {"cuCtxCreate_v2", "cuCtxCreate"},
                   {"cuStreamSynchronize", "cuStreamSynchronize"}},
  passed[NAMES] = {{"cuMemcpyHtoD_v2", "cuMemcpyHtoD"},
                   {"cuEventRecord", "cuEventRecord"},
                   {"cuFuncGetAttribute", "cuFuncGetAttribute"},
                   {"cuPointerGetAttribute", "cuPointerGetAttribute"}};
static unsigned turn;

static void look_up(void)
{
    dlsym(library, hooked[turn++ % NAMES].symbol);
}

static void look_up_passed(void)
{
    dlsym(library, passed[turn++ % NAMES].symbol);
}

static void ask(const char *name)
{
    void *function;
    int status;
    cuda.cuGetProcAddress_v2(name, &function, 12000, 0, &status);
}

static void proc_address(void)
{
    ask(hooked[turn++ % NAMES].name);
}

static void proc_address_passed(void)
{
    ask(passed[turn++ % NAMES].name);
}

static const struct {
    const char *name;
    void (*call)(void);
    long calls;
} measures[] = {
    {"alloc", alloc_and_free, 200000},
    {"info", info, 300000},
    {"launch", launch, 300000},
    {"dlsym", look_up, 100000},
    {"dlsym_passed", look_up_passed, 100000},
    {"proc_address", proc_address, 50000},
    {"proc_address_passed", proc_address_passed, 50000},
};

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void measure(size_t which, int others, long blocks)
{
    double rounds[ROUNDS];
    for (long i = 0; i < measures[which].calls / 4; i++)
        measures[which].call();
    for (int round = 0; round < ROUNDS; round++) {
        double began = now_ns();
        for (long i = 0; i < measures[which].calls; i++)
            measures[which].call();
        rounds[round] = (now_ns() - began) / (double)measures[which].calls;
    }
    qsort(rounds, ROUNDS, sizeof *rounds, by_value);
    printf("{\"measure\":\"%s\",\"others\":%d,\"live_blocks\":%ld,\"ns\":%.2f,\"least_ns\":%.2f,"
           "\"most_ns\":%.2f}\n",
           measures[which].name, others, blocks, rounds[ROUNDS / 2], rounds[0], rounds[ROUNDS - 1]);
}

/* A driver has threads of its own: a process with one only is what libc makes its locks cheaper for. */
static void *wait_for_the_end(void *nothing)
{
    for (;;)
        pause();
    return nothing;
}

int main(int argc, char **argv)
{
    static pid_t pids[MOST_OTHERS];
    int others = argc > 2 ? atoi(argv[2]) : 0;
    long blocks = argc > 3 ? atol(argv[3]) : 0;
    int threads = argc > 4 ? atoi(argv[4]) : 0;
    pthread_t thread;
    size_t which = 0, count = sizeof measures / sizeof *measures;
    while (argc > 1 && which < count && strcmp(argv[1], measures[which].name) != 0)
        which++;
    if (argc < 2 || which == count || others < 0 || others > MOST_OTHERS) {
        fprintf(stderr, "usage: hook_calls alloc|info|launch|dlsym[_passed]|proc_address[_passed] "
                        "[OTHERS [LIVE_BLOCKS [THREADS]]]\n");
        return 2;
    }
    start_others(others, pids);
    load();
    start();
    for (long i = 0; i < blocks; i++) {
        CUdeviceptr address;
        if (cuda.cuMemAlloc_v2(&address, BYTES) != 0)
            fail("cuMemAlloc", 0);
    }
    while (threads-- > 0)
        if (pthread_create(&thread, NULL, wait_for_the_end, NULL) != 0)
            fail("pthread_create", threads);
    measure(which, others, blocks);
    for (int i = 0; i < others; i++) {
        kill(pids[i], SIGKILL);
        waitpid(pids[i], NULL, 0);
    }
    return 0;
}
