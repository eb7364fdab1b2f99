/* Many threads of one process that use every kind of call at the same time, for sanitizers: the library is
 * part of this program, the driver is the simulated one. Prints how many rounds were done; whatever a call
 * answers that it should not goes to stderr.
 *
 *   everything ROUNDS
 *
 * Functions are found by name, by another way each time, so that lookups race with all else.
 */
#include "../../hook/cuda_abi.h"
#include "../../hook/nvml_abi.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { THREADS = 8, FORK_EVERY = 16, CUDA_VERSION_ASKED = 12080, PAGE = 2 << 20, FORMAT_FLOAT = 0x20 };

static void *cuda, *nvml;
static atomic_uint wrong, lookups;

static void *find(const char *name)
{
    void *found = NULL;
    switch (atomic_fetch_add(&lookups, 1) % 4) {
    case 0:
        return dlsym(cuda, name);
    case 1:
        found = dlsym(RTLD_DEFAULT, name);
        break;
    case 2:
        found = dlvsym(cuda, name, "GLIBC_2.2.5"); /* which the driver has not */
        break;
    default:
        if (!strpbrk(name, "_")) /* the name of an API, too */
            ((__typeof__(&cuGetProcAddress))dlsym(cuda, "cuGetProcAddress"))(name, &found, 0, 0);
    }
    return found ? found : dlsym(cuda, name);
}

#define CALL(name) ((__typeof__(&name))find(#name))
#define NVML(name) ((__typeof__(&name))dlsym(nvml, #name))

static int told(const char *what, int result)
{
    /* What of the limit is left is others' doing. */
    if (result != CUDA_SUCCESS && result != CUDA_ERROR_OUT_OF_MEMORY && atomic_fetch_add(&wrong, 1) < 20)
        fprintf(stderr, "%s: %d\n", what, result);
    return result;
}

#define DO(name, ...) told(#name, CALL(name)(__VA_ARGS__))
#define OK(name, ...) (DO(name, __VA_ARGS__) == CUDA_SUCCESS)

/* --- one of each ---------------------------------------------------------------------------------------- */

static void memory(void)
{
    CUdeviceptr a, b, c;
    size_t pitch, room, total;
    if (OK(cuMemAlloc_v2, &a, 3 << 20)) {
        if (OK(cuMemAllocPitch_v2, &b, &pitch, 500, 1000, 4))
            DO(cuMemFree_v2, b);
        if (OK(cuMemAllocManaged, &c, PAGE, 1))
            DO(cuMemFree_v2, c);
        DO(cuMemGetInfo_v2, &room, &total);
        DO(cuMemFree_v2, a);
    }
    DO(cuDeviceTotalMem_v2, &total, 0);
}

static void pools(CUstream stream)
{
    CUmemPoolProps props = {.allocType = 1, .location = {.type = 1}};
    CUmemoryPool pool, standard;
    CUdeviceptr a, b;
    if (OK(cuMemAllocAsync, &a, 5 << 20, stream))
        DO(cuMemFreeAsync, a, stream);
    if (OK(cuMemPoolCreate, &pool, &props)) {
        if (OK(cuMemAllocFromPoolAsync_ptsz, &b, 5 << 20, pool, stream))
            DO(cuMemFreeAsync_ptsz, b, stream);
        DO(cuStreamSynchronize, stream);
        DO(cuMemPoolTrimTo, pool, 0);
        DO(cuMemPoolDestroy, pool);
    }
    if (OK(cuDeviceGetDefaultMemPool, &standard, 0))
        DO(cuMemPoolTrimTo, standard, 0);
}

static void mappings(void)
{
    CUmemAllocationProp prop = {.type = 1, .location = {.type = 1}};
    CUmemAccessDesc access = {.location = prop.location, .flags = 3};
    CUmemGenericAllocationHandle handle, same;
    CUdeviceptr at;
    if (!OK(cuMemCreate, &handle, PAGE, &prop, 0))
        return;
    if (OK(cuMemAddressReserve, &at, PAGE, 0, 0, 0)) {
        if (OK(cuMemMap, at, PAGE, 0, handle, 0)) {
            DO(cuMemSetAccess, at, PAGE, &access, 1);
            if (OK(cuMemRetainAllocationHandle, &same, (void *)(uintptr_t)at))
                DO(cuMemRelease, same);
            DO(cuMemUnmap, at, PAGE);
        }
        DO(cuMemAddressFree, at, PAGE);
    }
    DO(cuMemRelease, handle);
}

static void arrays(void)
{
    CUDA_ARRAY_DESCRIPTOR flat = {.Width = 300, .Height = 200, .Format = FORMAT_FLOAT, .NumChannels = 1};
    CUDA_ARRAY3D_DESCRIPTOR deep = {64, 64, 8, FORMAT_FLOAT, 1, 0};
    CUarray array;
    CUmipmappedArray mipmapped;
    if (OK(cuArrayCreate_v2, &array, &flat))
        DO(cuArrayDestroy, array);
    if (OK(cuArray3DCreate_v2, &array, &deep))
        DO(cuArrayDestroy, array);
    if (OK(cuMipmappedArrayCreate, &mipmapped, &deep, 3))
        DO(cuMipmappedArrayDestroy, mipmapped);
}

static void launches(CUstream stream)
{
    CUmodule module;
    CUlibrary library;
    CUdeviceptr variable;
    CUfunction kernel;
    CUlaunchConfig config = {1, 1, 1, 32, 1, 1, 0, stream, NULL, 0};
    if (OK(cuModuleLoadData, &module, "image")) {
        if (OK(cuModuleGetFunction, &kernel, module, "short"))
            for (int i = 0; i < 20; i++) {
                DO(cuLaunchKernel, kernel, 1, 1, 1, 32, 1, 1, 0, stream, NULL, NULL);
                DO(cuLaunchKernelEx_ptsz, &config, kernel, NULL, NULL);
                DO(cuLaunchCooperativeKernel, kernel, 1, 1, 1, 32, 1, 1, 0, stream, NULL);
            }
        DO(cuStreamSynchronize, stream);
        DO(cuModuleUnload, module);
    }
    if (OK(cuLibraryLoadData, &library, "image", NULL, NULL, 0, NULL, NULL, 0)) {
        DO(cuLibraryGetManaged, &variable, NULL, library, "1");
        DO(cuLibraryUnload, library);
    }
}

static void run_and_end(CUgraph graph, CUstream stream)
{
    CUgraphExec exec;
    if (OK(cuGraphInstantiateWithFlags, &exec, graph, 0)) {
        DO(cuGraphUpload, exec, stream);
        DO(cuGraphLaunch, exec, stream);
        DO(cuStreamSynchronize, stream);
        DO(cuGraphExecDestroy, exec);
    }
    DO(cuGraphDestroy, graph);
}

static void graphs(CUstream stream)
{
    CUDA_MEM_ALLOC_NODE_PARAMS params = {.poolProps = {.allocType = 1, .location = {.type = 1}},
                                         .bytesize = 9 << 20};
    CUgraphNode node, freed;
    CUgraph graph, copy;
    CUmodule module;
    CUfunction kernel;
    if (OK(cuGraphCreate, &graph, 0)) {
        if (OK(cuGraphAddMemAllocNode, &node, graph, NULL, 0, &params))
            DO(cuGraphAddMemFreeNode, &freed, graph, &node, 1, params.dptr);
        run_and_end(graph, stream);
        DO(cuDeviceGraphMemTrim, 0);
    }
    if (!OK(cuModuleLoadData, &module, "image"))
        return;
    if (OK(cuModuleGetFunction, &kernel, module, "short")
        && OK(cuStreamBeginCapture_v2, stream, CAPTURE_MODE_RELAXED)) {
        DO(cuLaunchKernel, kernel, 1, 1, 1, 32, 1, 1, 0, stream, NULL, NULL);
        if (OK(cuStreamEndCapture, stream, &graph)) {
            if (OK(cuGraphClone, &copy, graph))
                run_and_end(copy, stream);
            run_and_end(graph, stream);
        }
    }
    DO(cuModuleUnload, module);
}

/* A context that ends with all that is in it: destroyed, or with the last who detaches. */
static void context(CUcontext primary, bool detached)
{
    CUcontext own, before;
    CUdeviceptr address;
    CUstream stream;
    if (!OK(cuCtxCreate_v2, &own, 0, 0))
        return;
    DO(cuMemAlloc_v2, &address, 1 << 20);
    if (OK(cuStreamCreate, &stream, 1))
        launches(stream);
    if (!detached)
        DO(cuCtxDestroy_v2, own);
    else if (OK(cuCtxAttach, &before, 0) && OK(cuCtxDetach, own))
        DO(cuCtxDetach, own);
    if (OK(cuCtxGetCurrent, &before) && before != primary)
        DO(cuCtxSetCurrent, primary);
}

static void looks(void)
{
    nvmlDevice_t device;
    struct nvml_memory all;
    struct nvml_memory_v2 all_v2 = {.version = NVML_MEMORY_V2};
    struct nvml_utilization busy;
    struct nvml_process_info infos[64];
    struct nvml_process_utilization shares[64];
    struct nvml_sample samples[128];
    unsigned count = 64;
    int kind;
    if (told("device", NVML(nvmlDeviceGetHandleByIndex_v2)(0, &device)) != NVML_SUCCESS)
        return;
    told("memory", NVML(nvmlDeviceGetMemoryInfo)(device, &all));
    told("memory v2", NVML(nvmlDeviceGetMemoryInfo_v2)(device, &all_v2));
    told("processes", NVML(nvmlDeviceGetComputeRunningProcesses_v3)(device, &count, infos));
    told("graphics", (count = 64, NVML(nvmlDeviceGetGraphicsRunningProcesses_v3)(device, &count, infos)));
    told("utilisation", NVML(nvmlDeviceGetUtilizationRates)(device, &busy));
    NVML(nvmlDeviceGetProcessUtilization)(device, shares, (count = 64, &count), 0); /* may find nobody */
    NVML(nvmlDeviceGetSamples)(device, NVML_SAMPLES_GPU, 0, &kind, (count = 128, &count), samples);
}

static void lookups_of_all_kinds(void)
{
    static const char *const names[] = {"cuMemAlloc", "cuMemAllocAsync", "cuLaunchKernel", "cuGraphLaunch",
                                        "cuMemFree"};
    for (unsigned i = 0; i < sizeof names / sizeof *names; i++)
        for (cuuint64_t flags = 0; flags <= CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM; flags += 2) {
            CUdriverProcAddressQueryResult status;
            void *found = NULL;
            DO(cuGetProcAddress_v2, names[i], &found, CUDA_VERSION_ASKED, flags, &status);
            DO(cuGetProcAddress, names[i], &found, CUDA_VERSION_ASKED, flags);
        }
    dlsym(RTLD_NEXT, "malloc");
    dlvsym(RTLD_DEFAULT, "memcpy", "GLIBC_2.2.5");
}

/* In the child whatever the other threads were at is for ever under way. */
static void child(void)
{
    int status = 1;
    pid_t pid = fork();
    if (pid == 0)
        _exit(!dlsym(cuda, "cuMemAlloc_v2") || !dlsym(cuda, "cuGetErrorName"));
    waitpid(pid, &status, 0);
    told("child", status);
}

/* --- all of them ---------------------------------------------------------------------------------------- */

static long rounds;

static void *work(void *number)
{
    unsigned state = (unsigned)(uintptr_t)number + 1;
    CUcontext primary = NULL;
    CUstream stream = NULL;
    DO(cuInit, 0); /* all at the same time */
    DO(cuDevicePrimaryCtxRetain, &primary, 0);
    DO(cuCtxSetCurrent, primary);
    DO(cuStreamCreate, &stream, STREAM_CREATED_NON_BLOCKING);
    told("nvmlInit", NVML(nvmlInit_v2)());
    for (long i = 0; i < rounds; i++) {
        state = state * 1664525U + 1013904223U;
        switch (state >> 24 & 7) {
        case 0:
            memory();
            break;
        case 1:
            pools(stream);
            break;
        case 2:
            mappings();
            break;
        case 3:
            arrays();
            break;
        case 4:
            launches(stream);
            break;
        case 5:
            graphs(stream);
            break;
        case 6:
            context(primary, false);
            context(primary, true);
            break;
        default:
            looks(), lookups_of_all_kinds();
        }
        if (number == 0 && i % FORK_EVERY == 0)
            child();
    }
    DO(cuStreamDestroy_v2, stream);
    DO(cuDevicePrimaryCtxRelease_v2, 0);
    return NULL;
}

int main(int argc, char **argv)
{
    pthread_t threads[THREADS];
    rounds = argc > 1 ? atol(argv[1]) : 10;
    cuda = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
    nvml = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_GLOBAL);
    if (!cuda || !nvml)
        return 2;
    for (long i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, work, (void *)i);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    printf("%ld %u\n", THREADS * rounds, atomic_load(&wrong));
    return 0;
}
