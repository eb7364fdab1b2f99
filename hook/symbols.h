/* Every intercepted symbol, once. A new line adds the pointer to the driver's own, its loading and both
 * lookups.
 *
 * CUDA: X(symbol, its name in cuGetProcAddress, CUDA version that brought this ABI, flags of
 * cuGetProcAddress). A name without suffix is the first ABI, with 32 bit sizes. The wrapper of each is in the
 * file named above its lines.
 */
#ifndef VGPU_SYMBOLS_H
#define VGPU_SYMBOLS_H

// clang-format off
#define CUDA_SYMBOLS(X)                                             \
    /* cuda_start.c */                                              \
    X(cuInit,               "cuInit",             2000, 0)          \
    /* dlsym.c */                                                   \
    X(cuGetProcAddress,     "cuGetProcAddress",  11030, 0)          \
    X(cuGetProcAddress_v2,  "cuGetProcAddress",  12000, 0)          \
    /* cuda_memory.c */                                             \
    X(cuMemAlloc,           "cuMemAlloc",         2000, 0)          \
    X(cuMemAlloc_v2,        "cuMemAlloc",         3020, 0)          \
    X(cuMemAllocPitch,      "cuMemAllocPitch",    2000, 0)          \
    X(cuMemAllocPitch_v2,   "cuMemAllocPitch",    3020, 0)          \
    X(cuMemAllocManaged,    "cuMemAllocManaged",  6000, 0)          \
    X(cuMemAllocAsync,      "cuMemAllocAsync",   11020, 0)          \
    X(cuMemAllocAsync_ptsz, "cuMemAllocAsync",   11020, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) \
    X(cuMemFree,            "cuMemFree",          2000, 0)          \
    X(cuMemFree_v2,         "cuMemFree",          3020, 0)          \
    X(cuMemFreeAsync,       "cuMemFreeAsync",    11020, 0)          \
    X(cuMemFreeAsync_ptsz,  "cuMemFreeAsync",    11020, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) \
    /* cuda_view.c */                                               \
    X(cuMemGetInfo,         "cuMemGetInfo",       2000, 0)          \
    X(cuMemGetInfo_v2,      "cuMemGetInfo",       3020, 0)          \
    X(cuDeviceTotalMem,     "cuDeviceTotalMem",   2000, 0)          \
    X(cuDeviceTotalMem_v2,  "cuDeviceTotalMem",   3020, 0)

/* Called by the wrappers, not intercepted. */
#define CUDA_USED(X)                                                \
    X(cuCtxGetDevice,       "cuCtxGetDevice",     2000, 0)          \
    X(cuDeviceGetUuid,      "cuDeviceGetUuid",    9020, 0)

/* nvml_memory.c */
#define NVML_SYMBOLS(X)                                             \
    X(nvmlDeviceGetMemoryInfo)                                      \
    X(nvmlDeviceGetMemoryInfo_v2)

#define NVML_USED(X)                                                \
    X(nvmlDeviceGetUUID)
// clang-format on

#define EXPORT __attribute__((visibility("default")))

#endif
