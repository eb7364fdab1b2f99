/* The functions of the null driver that callers need an answer from: one device of 80 GiB,
 * or NULL_CUDA_DEVICES of them. */
#include "../../hook/cuda_abi.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))
#define GIB (1ULL << 30)

EXPORT CUresult cuDeviceGetCount(int *count);
EXPORT CUresult cuDeviceGet(CUdevice *device, int ordinal);
EXPORT CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice device);
EXPORT CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device);
EXPORT CUresult cuCtxGetDevice(CUdevice *device);
EXPORT CUresult cuMemAlloc_v2(CUdeviceptr *address, size_t bytes);
EXPORT CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes);
EXPORT CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device);
EXPORT CUresult cuGetProcAddress_v2(const char *name, void **function, int version, cuuint64_t flags,
                                    int *status);
EXPORT CUresult cuGetProcAddress(const char *name, void **function, int version, cuuint64_t flags);

/* Kernels take a nanosecond, so that a share of the GPU's time is never spent. */
EXPORT CUresult cuEventElapsedTime(float *ms, CUevent begin, CUevent end);
EXPORT CUresult cuEventCreate(CUevent *event, unsigned flags);
EXPORT CUresult cuCtxGetCurrent(CUcontext *context);
EXPORT CUresult cuStreamIsCapturing(CUstream stream, int *status);

CUresult cuEventElapsedTime(float *ms, CUevent begin, CUevent end)
{
    *ms = begin && end ? 1e-6F : 0;
    return 0;
}

CUresult cuEventCreate(CUevent *event, unsigned flags)
{
    static char made;
    *event = (CUevent)(void *)&made;
    (void)flags;
    return 0;
}

CUresult cuCtxGetCurrent(CUcontext *context)
{
    static char made;
    *context = (CUcontext)(void *)&made;
    return 0;
}

CUresult cuStreamIsCapturing(CUstream stream, int *status)
{
    (void)stream;
    *status = 0;
    return 0;
}

CUresult cuDeviceGetCount(int *count)
{
    const char *devices = getenv("NULL_CUDA_DEVICES");
    *count = devices ? atoi(devices) : 1;
    return 0;
}

CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
    *device = ordinal;
    return 0;
}

CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice device)
{
    memset(uuid, 0x11 + device, sizeof *uuid);
    return 0;
}

CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device)
{
    return cuDeviceGetUuid(uuid, device);
}

CUresult cuCtxGetDevice(CUdevice *device)
{
    *device = 0;
    return 0;
}

CUresult cuMemAlloc_v2(CUdeviceptr *address, size_t bytes)
{
    static _Thread_local unsigned long long next = 0x700000000000;
    *address = next;
    next += (bytes + 511) & ~511ULL;
    return 0;
}

CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes)
{
    *free_bytes = *total_bytes = 80 * GIB;
    return 0;
}

CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device)
{
    *bytes = 80 * GIB;
    return device ? 101 : 0;
}

static void *exported(const char *name, int version)
{
    static void *own;
    if (!own)
        own = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
    char versioned[128];
    size_t length = strnlen(name, sizeof versioned - 4);
    memcpy(versioned, name, length);
    memcpy(versioned + length, "_v2", 4);
    void *function = version >= 3020 ? dlsym(own, versioned) : NULL;
    return function ? function : dlsym(own, name);
}

/* From a table of its own, as a driver does, which asks no loader: that would come through the hook again. */
CUresult cuGetProcAddress_v2(const char *name, void **function, int version, cuuint64_t flags, int *status)
{
    enum { NAMES = 1024, BYTES = 64 };
    static struct {
        char name[BYTES];
        int version;
        void *function;
    } table[NAMES];
    unsigned place = (unsigned)version;
    for (const char *letter = name; *letter; letter++)
        place = place * 33 + (unsigned char)*letter;
    place %= NAMES;
    if (table[place].version != version || strncmp(table[place].name, name, BYTES) != 0) {
        strncpy(table[place].name, name, BYTES - 1);
        table[place].version = version;
        table[place].function = exported(name, version);
    }
    (void)flags;
    *function = table[place].function;
    if (status)
        *status = *function ? 0 : 1;
    return *function ? 0 : 500;
}

CUresult cuGetProcAddress(const char *name, void **function, int version, cuuint64_t flags)
{
    return cuGetProcAddress_v2(name, function, version, flags, NULL);
}
