/* Simulated CUDA driver: cuGetProcAddress, which gives the newest version of a function that a program built
 * for CUDA `cuda_version` can call. Names have no suffix there: versions and per-thread streams are asked for
 * apart.
 */
#include "cuda_call.h"

#include <string.h>

static const struct version {
    const char *name;
    int since; /* CUDA version that brought this ABI */
    void *legacy, *per_thread;
} versions[] = {
#define V(name, since, symbol) {#name, since, (void *)&symbol, (void *)&symbol}
#define V_STREAM(name, since, symbol, per_thread) {#name, since, (void *)&symbol, (void *)&per_thread}
    V(cuInit, 2000, cuInit),
    V(cuDriverGetVersion, 2020, cuDriverGetVersion),
    V(cuGetProcAddress, 11030, cuGetProcAddress),
    V(cuGetProcAddress, 12000, cuGetProcAddress_v2),
    V(cuGetErrorName, 6000, cuGetErrorName),
    V(cuGetErrorString, 6000, cuGetErrorString),
    V(cuDeviceGet, 2000, cuDeviceGet),
    V(cuDeviceGetCount, 2000, cuDeviceGetCount),
    V(cuDeviceGetName, 2000, cuDeviceGetName),
    V(cuDeviceGetUuid, 9020, cuDeviceGetUuid),
    V(cuDeviceGetUuid, 11040, cuDeviceGetUuid_v2),
    V(cuDeviceTotalMem, 2000, cuDeviceTotalMem),
    V(cuDeviceTotalMem, 3020, cuDeviceTotalMem_v2),
    V(cuDeviceGetAttribute, 2000, cuDeviceGetAttribute),
    V(cuDeviceGetPCIBusId, 4010, cuDeviceGetPCIBusId),
    V(cuDevicePrimaryCtxRetain, 7000, cuDevicePrimaryCtxRetain),
    V(cuDevicePrimaryCtxRelease, 7000, cuDevicePrimaryCtxRelease),
    V(cuDevicePrimaryCtxRelease, 11000, cuDevicePrimaryCtxRelease_v2),
    V(cuCtxCreate, 3020, cuCtxCreate_v2),
    V(cuCtxDestroy, 4000, cuCtxDestroy_v2),
    V(cuCtxSetCurrent, 4000, cuCtxSetCurrent),
    V(cuCtxGetCurrent, 4000, cuCtxGetCurrent),
    V(cuCtxGetDevice, 2000, cuCtxGetDevice),
    V(cuCtxPushCurrent, 4000, cuCtxPushCurrent_v2),
    V(cuCtxPopCurrent, 4000, cuCtxPopCurrent_v2),
    V(cuCtxSynchronize, 2000, cuCtxSynchronize),
    V(cuMemAlloc, 2000, cuMemAlloc),
    V(cuMemAlloc, 3020, cuMemAlloc_v2),
    V(cuMemAllocPitch, 2000, cuMemAllocPitch),
    V(cuMemAllocPitch, 3020, cuMemAllocPitch_v2),
    V(cuMemAllocManaged, 6000, cuMemAllocManaged),
    V_STREAM(cuMemAllocAsync, 11020, cuMemAllocAsync, cuMemAllocAsync_ptsz),
    V(cuMemFree, 2000, cuMemFree),
    V(cuMemFree, 3020, cuMemFree_v2),
    V_STREAM(cuMemFreeAsync, 11020, cuMemFreeAsync, cuMemFreeAsync_ptsz),
    V(cuMemGetInfo, 2000, cuMemGetInfo),
    V(cuMemGetInfo, 3020, cuMemGetInfo_v2),
    V(cuMemCreate, 10020, cuMemCreate),
    V(cuMemRelease, 10020, cuMemRelease),
    V(cuModuleLoadData, 2000, cuModuleLoadData),
    V(cuModuleUnload, 2000, cuModuleUnload),
    V(cuModuleGetFunction, 2000, cuModuleGetFunction),
    V(cuLaunchKernel, 4000, cuLaunchKernel),
    V(cuStreamCreate, 2000, cuStreamCreate),
    V(cuStreamSynchronize, 2000, cuStreamSynchronize),
    V(cuStreamDestroy, 4000, cuStreamDestroy_v2),
};

EXPORT CUresult cuGetProcAddress_v2(const char *symbol, void **function, int cuda_version, uint64_t flags,
                                    int *status)
{
    if (!symbol || !function)
        return CUDA_ERROR_INVALID_VALUE;
    int found = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    const struct version *best = NULL;
    for (size_t i = 0; i < sizeof versions / sizeof *versions; i++) {
        if (strcmp(versions[i].name, symbol) != 0)
            continue;
        if (versions[i].since <= cuda_version && (!best || versions[i].since > best->since))
            best = &versions[i];
        found = best ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
    }
    bool per_thread = flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
    *function = best ? (per_thread ? best->per_thread : best->legacy) : NULL;
    if (status)
        *status = found;
    return best ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

EXPORT CUresult cuGetProcAddress(const char *symbol, void **function, int cuda_version, uint64_t flags)
{
    return cuGetProcAddress_v2(symbol, function, cuda_version, flags, NULL);
}
