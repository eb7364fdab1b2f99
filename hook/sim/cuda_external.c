/* Simulated CUDA driver: memory that is somebody else's (another process's, another interface's, the host's).
 * None of it takes memory of the GPU from this process.
 */
#include "cuda_call.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { MARK = 0x65787465 };

struct CUextMemory_st {
    unsigned mark;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static CUdeviceptr next_address = 0x400000000000ULL;

static CUresult see(const char *function, CUdeviceptr *address)
{
    struct cuda_call call;
    CUresult result = cuda_begin_context(&call, function);
    if (result == CUDA_SUCCESS && !address)
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS) {
        pthread_mutex_lock(&lock);
        *address = next_address;
        next_address += UINT64_C(1) << 30;
        pthread_mutex_unlock(&lock);
    }
    return cuda_end(&call, result);
}

EXPORT CUresult cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr address)
{
    FAIL_IF_TOLD;
    if (!handle || !address)
        return CUDA_ERROR_INVALID_VALUE;
    memset(handle, 0, sizeof *handle);
    memcpy(handle, &address, sizeof address);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *address, CUipcMemHandle handle, unsigned flags)
{
    (void)handle, (void)flags;
    return see(__func__, address);
}

EXPORT CUresult cuIpcCloseMemHandle(CUdeviceptr address)
{
    FAIL_IF_TOLD;
    return address ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuImportExternalMemory(CUexternalMemory *memory,
                                       const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *description)
{
    FAIL_IF_TOLD;
    if (!memory || !description || !(*memory = calloc(1, sizeof **memory)))
        return CUDA_ERROR_INVALID_VALUE;
    (*memory)->mark = MARK;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuExternalMemoryGetMappedBuffer(CUdeviceptr *address, CUexternalMemory memory,
                                                const CUDA_EXTERNAL_MEMORY_BUFFER_DESC *description)
{
    FAIL_IF_TOLD;
    if (!memory || memory->mark != MARK || !description)
        return CUDA_ERROR_INVALID_VALUE;
    return see(__func__, address);
}

EXPORT CUresult cuDestroyExternalMemory(CUexternalMemory memory)
{
    FAIL_IF_TOLD;
    if (!memory || memory->mark != MARK)
        return CUDA_ERROR_INVALID_VALUE;
    memory->mark = 0;
    free(memory);
    return CUDA_SUCCESS;
}

static CUresult host(const char *function, void **address, size_t bytes)
{
    struct cuda_call call;
    CUresult result = cuda_begin_context(&call, function);
    if (result == CUDA_SUCCESS && (!address || bytes == 0))
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS && !(*address = malloc(64))) /* nobody writes more than a marker into it */
        result = CUDA_ERROR_OUT_OF_MEMORY;
    return cuda_end(&call, result);
}

EXPORT CUresult cuMemAllocHost_v2(void **address, size_t bytes)
{
    return host(__func__, address, bytes);
}

EXPORT CUresult cuMemHostAlloc(void **address, size_t bytes, unsigned flags)
{
    (void)flags;
    return host(__func__, address, bytes);
}

EXPORT CUresult cuMemFreeHost(void *address)
{
    FAIL_IF_TOLD;
    free(address);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemHostRegister_v2(void *address, size_t bytes, unsigned flags)
{
    FAIL_IF_TOLD;
    (void)flags;
    return address && bytes ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuMemHostUnregister(void *address)
{
    FAIL_IF_TOLD;
    return address ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
