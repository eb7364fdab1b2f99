/* Simulated CUDA driver: versions, names of errors, and what a device is. */
#include "cuda_call.h"

#include <stdio.h>
#include <string.h>

#define MIB (1024ULL * 1024ULL)

EXPORT CUresult cuDriverGetVersion(int *version)
{
    CUresult result = cuda_told_to_fail(__func__); /* it works before cuInit */
    if (result == CUDA_SUCCESS && !version)
        result = CUDA_ERROR_INVALID_VALUE;
    if (result != CUDA_SUCCESS)
        return result;
    const struct sim_node *node = sim_node_acquire();
    *version = node ? node->cuda_version : 0;
    sim_node_release(node);
    return CUDA_SUCCESS;
}

static const struct {
    CUresult code;
    const char *name, *text;
} errors[] = {
    {CUDA_SUCCESS, "CUDA_SUCCESS", "no error"},
    {CUDA_ERROR_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {CUDA_ERROR_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {CUDA_ERROR_NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {CUDA_ERROR_NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {CUDA_ERROR_INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {CUDA_ERROR_INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {CUDA_ERROR_OPERATING_SYSTEM, "CUDA_ERROR_OPERATING_SYSTEM", "OS call failed or operation not supported"},
    {CUDA_ERROR_INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {CUDA_ERROR_ILLEGAL_STATE, "CUDA_ERROR_ILLEGAL_STATE",
     "the operation cannot be performed in the present state"},
    {CUDA_ERROR_NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {CUDA_ERROR_NOT_READY, "CUDA_ERROR_NOT_READY", "device not ready"},
    {CUDA_ERROR_NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
     "operation not permitted when stream is capturing"},
    {CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED",
     "operation failed due to a previous error during capture"},
    {CUDA_ERROR_UNKNOWN, "CUDA_ERROR_UNKNOWN", "unknown error"},
};

/* Place of the error in the table, -1 when it is not there. */
static int place_of(CUresult error)
{
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
        if (errors[i].code == error)
            return (int)i;
    return -1;
}

EXPORT CUresult cuGetErrorName(CUresult error, const char **name)
{
    CUresult result = cuda_told_to_fail(__func__);
    if (result == CUDA_SUCCESS && (!name || place_of(error) < 0))
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        *name = errors[place_of(error)].name;
    return result;
}

EXPORT CUresult cuGetErrorString(CUresult error, const char **text)
{
    CUresult result = cuda_told_to_fail(__func__);
    if (result == CUDA_SUCCESS && (!text || place_of(error) < 0))
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        *text = errors[place_of(error)].text;
    return result;
}

EXPORT CUresult cuDeviceGetCount(int *count)
{
    struct cuda_call call;
    CUresult result = cuda_begin(&call, __func__);
    if (result == CUDA_SUCCESS && !count)
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        *count = device_count();
    return cuda_end(&call, result);
}

EXPORT CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
    struct cuda_call call;
    CUresult result = cuda_begin_device(&call, __func__, ordinal);
    if (result == CUDA_SUCCESS && !device)
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        *device = ordinal;
    return cuda_end(&call, result);
}

EXPORT CUresult cuDeviceGetName(char *name, int length, CUdevice device)
{
    struct cuda_call call;
    CUresult result = cuda_begin_device(&call, __func__, device);
    if (result == CUDA_SUCCESS && (!name || length < 1))
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        snprintf(name, (size_t)length, "%s", call.gpu->name);
    return cuda_end(&call, result);
}

/* "GPU-01234567-89ab-..." -> 16 bytes */
static void parse_uuid(const char *text, CUuuid *uuid)
{
    static const char hex[] = "0123456789abcdef";
    memset(uuid, 0, sizeof *uuid);
    const char *dash = strchr(text, '-');
    size_t digits = 0;
    for (const char *c = dash ? dash + 1 : text; *c && digits < 32; c++) {
        const char *digit = strchr(hex, *c | 0x20);
        if (*c == '-' || !digit)
            continue;
        uuid->bytes[digits / 2] = (unsigned char)(uuid->bytes[digits / 2] * 16 + (digit - hex));
        digits++;
    }
}

EXPORT CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device)
{
    struct cuda_call call;
    CUresult result = cuda_begin_device(&call, __func__, device);
    if (result == CUDA_SUCCESS && !uuid)
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        parse_uuid(call.gpu->uuid, uuid);
    return cuda_end(&call, result);
}

/* The first version tells the GPU's uuid of a MIG device. */
EXPORT CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice device)
{
    CUresult result = cuDeviceGetUuid_v2(uuid, device);
    struct cuda_call call;
    if (result == CUDA_SUCCESS && cuda_begin_device(&call, __func__, device) == CUDA_SUCCESS
        && call.gpu->parent >= 0)
        parse_uuid(call.node->gpus[call.gpu->parent].uuid, uuid);
    return result == CUDA_SUCCESS ? cuda_end(&call, result) : result;
}

/* As real drivers tell it, CUDA's total is without their own part, which NVML's is with. */
static uint64_t total_bytes(const struct cuda_call *call)
{
    if (call->gpu->memory_mib == UNKNOWN)
        return capacity_bytes(call);
    int64_t usable_mib = call->gpu->memory_mib - call->gpu->reserved_mib;
    return usable_mib > 0 ? (uint64_t)usable_mib * MIB : 0;
}

EXPORT CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device)
{
    struct cuda_call call;
    CUresult result = cuda_begin_device(&call, __func__, device);
    if (result == CUDA_SUCCESS && !bytes)
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        *bytes = total_bytes(&call);
    return cuda_end(&call, result);
}

EXPORT CUresult cuDeviceTotalMem(unsigned *bytes, CUdevice device)
{
    size_t all = 0;
    CUresult result = cuda_told_to_fail(__func__);
    if (result == CUDA_SUCCESS)
        result = bytes ? cuDeviceTotalMem_v2(&all, device) : CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        *bytes = all < UINT32_MAX ? (unsigned)all : UINT32_MAX;
    return result;
}

static unsigned bus_part(const struct sim_gpu *gpu, int part)
{
    unsigned domain = 0, bus = 0, slot = 0;
    sscanf(gpu->bus_id, "%8x:%2x:%2x", &domain, &bus, &slot);
    return part == 0 ? domain : part == 1 ? bus : slot;
}

static int attribute_of(const struct sim_gpu *gpu, int attribute)
{
    switch (attribute) { /* numbers of CUdevice_attribute */
    case 1: /* threads per block */
        return 1024;
    case 10: /* warp size */
        return 32;
    case 16: /* multiprocessors */
        return gpu->multiprocessors ? (int)gpu->multiprocessors : 84;
    case 33:
        return (int)bus_part(gpu, 1);
    case 34:
        return (int)bus_part(gpu, 2);
    case 39: /* threads per multiprocessor */
        return 1536;
    case 41: /* unified addressing */
    case 83: /* managed memory */
    case 115: /* memory pools */
        return 1;
    case 50:
        return (int)bus_part(gpu, 0);
    case 75:
        return (int)gpu->cc_major;
    case 76:
        return (int)gpu->cc_minor;
    default:
        return 0;
    }
}

EXPORT CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice device)
{
    struct cuda_call call;
    CUresult result = cuda_begin_device(&call, __func__, device);
    if (result == CUDA_SUCCESS && (!value || attribute < 1))
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        *value = attribute_of(call.gpu, attribute);
    return cuda_end(&call, result);
}

EXPORT CUresult cuDeviceGetPCIBusId(char *bus_id, int length, CUdevice device)
{
    struct cuda_call call;
    CUresult result = cuda_begin_device(&call, __func__, device);
    if (result == CUDA_SUCCESS && (!bus_id || length < 13))
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        snprintf(bus_id, (size_t)length, "%04X:%02X:%02X.0", bus_part(call.gpu, 0) & 0xFFFF,
                 bus_part(call.gpu, 1) & 0xFF, bus_part(call.gpu, 2) & 0xFF);
    return cuda_end(&call, result);
}
