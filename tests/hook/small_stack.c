/* CUDA and NVML in threads with a small stack, each step in one of its own.
 *
 * small_stack BYTES STEP...: a line for each, with its CUresult (or nvmlReturn_t) and how much of the stack was
 * used.
 */
#include "cuda_abi.h"
#include "nvml_abi.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { PAINT = 0x5a, LAUNCHES = 3000, PROCESSES = 8 };

static void *cuda, *nvml;
static CUcontext context;
static CUfunction function;
static CUstream stream;

#define CU(name) ((__typeof__(&name))dlsym(cuda, #name))
#define NVML(name) ((__typeof__(&name))dlsym(nvml, #name))

static int start(void)
{
    int result = CU(cuInit)(0);
    return result ? result : CU(cuDevicePrimaryCtxRetain)(&context, 0);
}

static int allocate(void)
{
    CUdeviceptr address;
    return CU(cuMemAlloc_v2)(&address, 600 << 20);
}

static int allocate_in_order(void)
{
    CUdeviceptr address;
    return CU(cuMemAllocAsync)(&address, 1 << 20, stream);
}

static int ask(void)
{
    size_t free_bytes, all_bytes;
    return CU(cuMemGetInfo_v2)(&free_bytes, &all_bytes);
}

static int load(void)
{
    CUmodule module;
    int result = CU(cuModuleLoadData)(&module, "image");
    result = result ? result : CU(cuModuleGetFunction)(&function, module, "kernel");
    return result ? result : CU(cuStreamCreate)(&stream, 1);
}

static int launch(void)
{
    int result = 0;
    for (int i = 0; i < LAUNCHES && !result; i++)
        result = CU(cuLaunchKernel)(function, 1, 1, 1, 32, 1, 1, 0, i % 2 ? stream : NULL, NULL, NULL);
    return result ? result : CU(cuStreamSynchronize)(stream);
}

static int look_up(void)
{
    void *found;
    return CU(cuGetProcAddress)("cuMemAlloc", &found, 12000, 0);
}

static int monitor(void)
{
    nvmlDevice_t device;
    struct nvml_memory memory;
    unsigned count = PROCESSES;
    struct nvml_process_info processes[PROCESSES];
    int result = NVML(nvmlInit_v2)();
    result = result ? result : NVML(nvmlDeviceGetHandleByIndex_v2)(0, &device);
    result = result ? result : NVML(nvmlDeviceGetMemoryInfo)(device, &memory);
    return result ? result : NVML(nvmlDeviceGetComputeRunningProcesses_v3)(device, &count, processes);
}

static const struct step {
    const char *name;
    int (*run)(void);
} steps[] = {
    {"start", start}, {"load", load},       {"allocate", allocate}, {"allocate_in_order", allocate_in_order},
    {"ask", ask},     {"launch", launch},   {"look_up", look_up},   {"monitor", monitor},
};

static void *run(void *name)
{
    long result = context ? CU(cuCtxSetCurrent)(context) : 0;
    for (size_t i = 0; i < sizeof steps / sizeof *steps && !result; i++)
        if (strcmp(steps[i].name, name) == 0)
            result = steps[i].run();
    return (void *)result;
}

int main(int count, char **words)
{
    size_t bytes = (size_t)atol(words[1]), guard = 4096;
    cuda = dlopen("libcuda.so.1", RTLD_NOW);
    nvml = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    for (int i = 2; i < count; i++) {
        pthread_attr_t attributes;
        pthread_t thread;
        void *result;
        unsigned char *stack = mmap(NULL, guard + bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        memset(stack, PAINT, guard + bytes);
        mprotect(stack, guard, PROT_NONE);
        pthread_attr_init(&attributes);
        pthread_attr_setstack(&attributes, stack + guard, bytes);
        if (pthread_create(&thread, &attributes, run, words[i]) != 0)
            return 1;
        pthread_join(thread, &result);
        size_t unused = 0;
        while (unused < bytes && stack[guard + unused] == PAINT)
            unused++;
        printf("%s %ld %zu\n", words[i], (long)result, bytes - unused);
        fflush(stdout);
    }
    return 0;
}
