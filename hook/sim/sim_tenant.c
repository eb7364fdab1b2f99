/* A GPU workload in a container, played: commands on stdin, one JSON object per line on stdout.
 *
 *   alloc <MiB> [device]        take memory                       {"ok":true,"result":0,...}
 *   managed <MiB> [device]      the same through cuMemAllocManaged
 *   free [count]                give back the newest `count` blocks (default: all)
 *   churn <MiB> [count]         take and give back that often (default once), as fast as it goes
 *   launch [count]              launch kernels and wait for them
 *   info                        just answer; so does anything that is not understood, as "command":"unknown"
 *   exit                        answer and leave; the end of stdin does the same
 *
 * Every answer carries: "command", "ok", "result" (CUresult of what was asked), "pid", "held_mib", "refused"
 * (how often memory was refused) and "devices": [{"uuid","total_mib","free_mib","total_mem_mib"}]. It finds
 * the driver as a CUDA program does, with dlopen and dlsym, so whatever interposes on those is in effect. The
 * first line, before any command, is "command":"ready"; if CUDA cannot be had its "ok" is false, "error" says
 * why, and the exit code is 3.
 */
#include "../cuda_abi.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MIB (1024ULL * 1024ULL)
enum { MAX_BLOCKS = 4096, MAX_DEVICES = 16, EXIT_NO_CUDA = 3 };

#define FUNCTIONS(X)                                                                                         \
    X(cuInit)                                                                                                \
    X(cuDeviceGetCount)                                                                                      \
    X(cuDeviceGetUuid)                                                                                       \
    X(cuDeviceTotalMem_v2)                                                                                   \
    X(cuDevicePrimaryCtxRetain)                                                                              \
    X(cuCtxSetCurrent)                                                                                       \
    X(cuMemAlloc_v2)                                                                                         \
    X(cuMemAllocManaged)                                                                                     \
    X(cuMemFree_v2)                                                                                          \
    X(cuMemGetInfo_v2)                                                                                       \
    X(cuModuleLoadData)                                                                                      \
    X(cuModuleGetFunction)                                                                                   \
    X(cuLaunchKernel)                                                                                        \
    X(cuCtxSynchronize)

static struct {
#define X(name) __typeof__(&name) name;
    FUNCTIONS(X)
#undef X
} cuda;

static CUcontext contexts[MAX_DEVICES];
static int device_count;
static struct {
    CUdeviceptr address;
    unsigned long long mib;
} blocks[MAX_BLOCKS];
static size_t block_count;
static unsigned long long held_mib, refused;

static const char *load_cuda(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!library)
        return "libcuda.so.1 is not there";
#define X(name)                                                                                              \
    *(void **)&cuda.name = dlsym(library, #name);                                                            \
    if (!cuda.name)                                                                                          \
        return "libcuda.so.1 lacks " #name;
    FUNCTIONS(X)
#undef X
    return NULL;
}

static CUresult start_cuda(void)
{
    CUresult result = cuda.cuInit(0);
    if (result == CUDA_SUCCESS)
        result = cuda.cuDeviceGetCount(&device_count);
    if (device_count > MAX_DEVICES)
        device_count = MAX_DEVICES;
    for (int i = 0; result == CUDA_SUCCESS && i < device_count; i++)
        result = cuda.cuDevicePrimaryCtxRetain(&contexts[i], i);
    return result;
}

static void print_devices(void)
{
    printf("\"devices\":[");
    for (int i = 0; i < device_count; i++) {
        CUuuid uuid = {{0}};
        size_t free_bytes = 0, total_bytes = 0, total_mem = 0;
        cuda.cuDeviceGetUuid(&uuid, i);
        cuda.cuDeviceTotalMem_v2(&total_mem, i);
        cuda.cuCtxSetCurrent(contexts[i]);
        cuda.cuMemGetInfo_v2(&free_bytes, &total_bytes);
        printf("%s{\"uuid\":\"GPU-", i ? "," : "");
        for (int j = 0; j < 16; j++)
            printf("%s%02x", j == 4 || j == 6 || j == 8 || j == 10 ? "-" : "", uuid.bytes[j]);
        printf("\",\"total_mib\":%llu,\"free_mib\":%llu,\"total_mem_mib\":%llu}", total_bytes / MIB,
               free_bytes / MIB, total_mem / MIB);
    }
    printf("]");
}

static void answer(const char *command, CUresult result)
{
    printf("{\"command\":\"%s\",\"ok\":%s,\"result\":%d,\"pid\":%d,\"held_mib\":%llu,\"refused\":%llu,",
           command, result == CUDA_SUCCESS ? "true" : "false", result, (int)getpid(), held_mib, refused);
    print_devices();
    printf("}\n");
    fflush(stdout);
}

static CUresult take(unsigned long long mib, int device, bool managed)
{
    if (device < 0 || device >= device_count || block_count == MAX_BLOCKS)
        return CUDA_ERROR_INVALID_VALUE;
    cuda.cuCtxSetCurrent(contexts[device]);
    CUdeviceptr address = 0;
    CUresult result =
        managed ? cuda.cuMemAllocManaged(&address, mib * MIB, 1) : cuda.cuMemAlloc_v2(&address, mib * MIB);
    if (result == CUDA_SUCCESS) {
        blocks[block_count].address = address;
        blocks[block_count++].mib = mib;
        held_mib += mib;
    } else if (result == CUDA_ERROR_OUT_OF_MEMORY) {
        refused++;
    }
    return result;
}

static CUresult give(unsigned long long count)
{
    CUresult result = CUDA_SUCCESS;
    while (count-- && block_count && result == CUDA_SUCCESS) {
        block_count--;
        result = cuda.cuMemFree_v2(blocks[block_count].address);
        held_mib -= blocks[block_count].mib;
    }
    return result;
}

static CUresult churn(unsigned long long mib, unsigned long long count)
{
    CUresult result = CUDA_SUCCESS;
    while (count-- && (result == CUDA_SUCCESS || result == CUDA_ERROR_OUT_OF_MEMORY)) {
        result = take(mib, 0, false);
        if (result == CUDA_SUCCESS)
            result = give(1);
    }
    return result;
}

static CUresult launch(unsigned long long count)
{
    CUmodule module;
    CUfunction function;
    cuda.cuCtxSetCurrent(contexts[0]);
    CUresult result = cuda.cuModuleLoadData(&module, "");
    if (result == CUDA_SUCCESS)
        result = cuda.cuModuleGetFunction(&function, module, "kernel");
    while (count-- && result == CUDA_SUCCESS)
        result = cuda.cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL);
    return result == CUDA_SUCCESS ? cuda.cuCtxSynchronize() : result;
}

/* One command; false when it was the last. */
static bool obey(char *line)
{
    char command[16] = "";
    unsigned long long amount = 0;
    int device = 0;
    int words = sscanf(line, "%15s %llu %d", command, &amount, &device);
    if (words < 1)
        return true;
    if (strcmp(command, "alloc") == 0 && words > 1)
        answer("alloc", take(amount, device, false));
    else if (strcmp(command, "managed") == 0 && words > 1)
        answer("managed", take(amount, device, true));
    else if (strcmp(command, "churn") == 0 && words > 1)
        answer("churn", churn(amount, words > 2 ? (unsigned long long)device : 1));
    else if (strcmp(command, "free") == 0)
        answer("free", give(words > 1 ? amount : MAX_BLOCKS));
    else if (strcmp(command, "launch") == 0)
        answer("launch", launch(words > 1 ? amount : 1));
    else if (strcmp(command, "exit") == 0)
        answer("exit", CUDA_SUCCESS);
    else
        answer(strcmp(command, "info") == 0 ? "info" : "unknown", CUDA_SUCCESS);
    return strcmp(command, "exit") != 0;
}

int main(void)
{
    char line[256];
    const char *missing = load_cuda();
    CUresult result = missing ? CUDA_ERROR_NOT_FOUND : start_cuda();
    if (result != CUDA_SUCCESS) {
        printf("{\"command\":\"ready\",\"ok\":false,\"result\":%d,\"pid\":%d,\"error\":\"%s\",\"held_mib\":0,"
               "\"refused\":0,\"devices\":[]}\n",
               result, (int)getpid(), missing ? missing : "CUDA does not start");
        return EXIT_NO_CUDA;
    }
    answer("ready", CUDA_SUCCESS);
    while (fgets(line, sizeof line, stdin) && obey(line)) { }
    return EXIT_SUCCESS;
}
