/* Simulated CUDA driver: device memory. Addresses are numbers that nothing stands behind; what is real is the
 * bytes that are taken from the GPU for all processes of the node, so that running out of memory is real too.
 */
#include "cuda_call.h"
#include "graph_memory.h"
#include "memory.h"
#include "pools.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { BUCKETS = 4096, GRANULE = 512 };
#define MIB (UINT64_C(1) << 20)

/* Of the GPU, in which small blocks of one context lie. */
struct page {
    uint64_t bytes, left;
    unsigned blocks;
    CUcontext context;
};

struct block {
    struct block *next;
    unsigned long long address;
    uint64_t bytes; /* that are given back with it, unless it lies in a page with others */
    struct page *page;
    CUcontext context;
    char uuid[TEXT_BYTES];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct block *buckets[BUCKETS];
static unsigned long long next_address = 0x700000000000ULL;
static unsigned long long next_low_address = 0x10000000ULL; /* for the 32 bit calls */
static struct page *open_page; /* the newest, or NULL */

static struct block **bucket_of(unsigned long long address)
{
    return &buckets[address / GRANULE % BUCKETS];
}

static uint64_t rounded(uint64_t bytes)
{
    return (bytes + GRANULE - 1) / GRANULE * GRANULE;
}

/* A place in the open page, or in a new one. */
static enum sim_memory_answer take_in_page(const struct cuda_call *call, struct block *block, uint64_t bytes)
{
    enum sim_memory_answer answer = SIM_MEMORY_DONE;
    pthread_mutex_lock(&lock);
    if (!open_page || open_page->context != block->context || open_page->left < bytes) {
        uint64_t page_bytes = call->gpu->page_mib * MIB;
        struct page *made = calloc(1, sizeof *made);
        answer = made ? sim_memory_take(call->gpu->uuid, page_bytes, capacity_bytes(call)) : SIM_MEMORY_FULL;
        if (answer == SIM_MEMORY_DONE) {
            *made = (struct page){.bytes = page_bytes, .left = page_bytes, .context = block->context};
            open_page = made;
        } else {
            free(made);
        }
    }
    if (answer == SIM_MEMORY_DONE) {
        block->page = open_page;
        open_page->blocks++;
        open_page->left -= bytes;
    }
    pthread_mutex_unlock(&lock);
    return answer;
}

/* Whole pages, or a place in one, as real drivers do. */
static enum sim_memory_answer take_bytes(const struct cuda_call *call, struct block *block, uint64_t bytes)
{
    uint64_t page_bytes = call->gpu->page_mib * MIB;
    if (bytes <= page_bytes / 2)
        return take_in_page(call, block, bytes);
    block->bytes = page_bytes ? (bytes + page_bytes - 1) / page_bytes * page_bytes : bytes;
    return sim_memory_take(call->gpu->uuid, block->bytes, capacity_bytes(call));
}

/* Called with the lock held. */
static void give_bytes(const struct block *block)
{
    struct page *page = block->page;
    if (block->bytes)
        sim_memory_give(block->uuid, block->bytes, false);
    if (!page || --page->blocks)
        return;
    sim_memory_give(block->uuid, page->bytes, false);
    open_page = page == open_page ? NULL : open_page;
    free(page);
}

/* Take `bytes` of the call's GPU and make them an address. */
static CUresult take(const struct cuda_call *call, uint64_t bytes, bool low, unsigned long long *address)
{
    if (bytes == 0 || !address)
        return CUDA_ERROR_INVALID_VALUE;
    if (bytes > UINT64_MAX / 2)
        return CUDA_ERROR_OUT_OF_MEMORY;
    bytes = rounded(bytes);
    struct block *block = calloc(1, sizeof *block);
    if (!block)
        return CUDA_ERROR_OUT_OF_MEMORY;
    block->context = whole_context(current_context());
    enum sim_memory_answer answer = take_bytes(call, block, bytes);
    if (answer != SIM_MEMORY_DONE) {
        free(block);
        return answer == SIM_MEMORY_BROKEN ? CUDA_ERROR_OPERATING_SYSTEM : CUDA_ERROR_OUT_OF_MEMORY;
    }
    memcpy(block->uuid, call->gpu->uuid, TEXT_BYTES);
    pthread_mutex_lock(&lock);
    unsigned long long *cursor = low ? &next_low_address : &next_address;
    block->address = *cursor;
    *cursor += bytes;
    struct block **bucket = bucket_of(block->address);
    block->next = *bucket;
    *bucket = block;
    pthread_mutex_unlock(&lock);
    *address = block->address;
    return CUDA_SUCCESS;
}

/* Managed memory that does not fit has its pages elsewhere. */
static CUresult live_on_the_host(uint64_t bytes, unsigned long long *address)
{
    struct block *block = calloc(1, sizeof *block);
    if (!block)
        return CUDA_ERROR_OUT_OF_MEMORY;
    pthread_mutex_lock(&lock);
    *address = block->address = next_address;
    next_address += rounded(bytes);
    struct block **bucket = bucket_of(block->address);
    block->next = *bucket;
    *bucket = block;
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}

static CUresult give(const char *function, unsigned long long address)
{
    struct cuda_call call;
    CUresult result = cuda_begin(&call, function);
    if (result != CUDA_SUCCESS || address == 0)
        return cuda_end(&call, result);
    pthread_mutex_lock(&lock);
    struct block **link = bucket_of(address);
    while (*link && (*link)->address != address)
        link = &(*link)->next;
    struct block *block = *link;
    if (block) {
        *link = block->next;
        give_bytes(block);
    }
    pthread_mutex_unlock(&lock);
    if (!block) {
        bool other = sim_pools_free(address) || sim_graph_memory_free(address);
        sim_pools_synchronised(); /* this call waits for the GPU */
        return cuda_end(&call, other ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
    }
    free(block);
    return cuda_end(&call, CUDA_SUCCESS);
}

void sim_memory_end_context(CUcontext context)
{
    pthread_mutex_lock(&lock);
    for (int i = 0; i < BUCKETS; i++) {
        for (struct block **link = &buckets[i]; *link;) {
            struct block *block = *link;
            if (block->context != context) {
                link = &block->next;
                continue;
            }
            *link = block->next;
            give_bytes(block);
            free(block);
        }
    }
    pthread_mutex_unlock(&lock);
}

static CUresult allocate(const char *function, uint64_t bytes, bool low, unsigned long long *address)
{
    struct cuda_call call;
    CUresult result = cuda_begin_context(&call, function);
    if (result == CUDA_SUCCESS)
        result = take(&call, bytes, low, address);
    return cuda_end(&call, result);
}

EXPORT CUresult cuMemAlloc_v2(CUdeviceptr *address, size_t bytes)
{
    return allocate(__func__, bytes, false, address);
}

EXPORT CUresult cuMemAlloc(CUdeviceptr_v1 *address, unsigned bytes)
{
    unsigned long long wide = 0;
    CUresult result = allocate(__func__, bytes, true, address ? &wide : NULL);
    if (result == CUDA_SUCCESS)
        *address = (CUdeviceptr_v1)wide;
    return result;
}

EXPORT CUresult cuMemAllocPitch_v2(CUdeviceptr *address, size_t *pitch, size_t width, size_t height,
                                   unsigned element)
{
    FAIL_IF_TOLD;
    (void)element;
    if (!pitch || width > UINT64_MAX / 2 || height > UINT32_MAX)
        return CUDA_ERROR_INVALID_VALUE;
    size_t row = rounded(width);
    if (height && row > UINT64_MAX / height)
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = allocate(__func__, row * height, false, address);
    if (result == CUDA_SUCCESS)
        *pitch = row;
    return result;
}

EXPORT CUresult cuMemAllocPitch(CUdeviceptr_v1 *address, unsigned *pitch, unsigned width, unsigned height,
                                unsigned element)
{
    FAIL_IF_TOLD;
    (void)element;
    unsigned long long wide = 0;
    unsigned row = (unsigned)rounded(width);
    if (!pitch || !address)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = allocate(__func__, (uint64_t)row * height, true, &wide);
    if (result == CUDA_SUCCESS) {
        *address = (CUdeviceptr_v1)wide;
        *pitch = row;
    }
    return result;
}

EXPORT CUresult cuMemAllocManaged(CUdeviceptr *address, size_t bytes, unsigned flags)
{
    (void)flags;
    struct cuda_call call;
    CUresult result = cuda_begin_context(&call, __func__);
    if (result == CUDA_SUCCESS)
        result = take(&call, bytes, false, address);
    if (result == CUDA_ERROR_OUT_OF_MEMORY && address && bytes < UINT64_MAX / 2)
        result = live_on_the_host(bytes, address);
    return cuda_end(&call, result);
}

EXPORT CUresult cuMemFree_v2(CUdeviceptr address)
{
    return give(__func__, address);
}

EXPORT CUresult cuMemFree(CUdeviceptr_v1 address)
{
    return give(__func__, address);
}

/* One of the two may be NULL, as OptiX asks. */
EXPORT CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes)
{
    struct cuda_call call;
    CUresult result = cuda_begin_context(&call, __func__);
    if (result == CUDA_SUCCESS && !free_bytes && !total_bytes)
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS && free_bytes) {
        uint64_t room = capacity_bytes(&call), used = sim_memory_used(call.gpu->uuid);
        *free_bytes = room > used ? room - used : 0;
    }
    if (result == CUDA_SUCCESS && total_bytes)
        result = cuDeviceTotalMem_v2(total_bytes, current_context()->device);
    return cuda_end(&call, result);
}

static unsigned clamped(size_t bytes)
{
    return bytes < UINT32_MAX ? (unsigned)bytes : UINT32_MAX;
}

EXPORT CUresult cuMemGetInfo(unsigned *free_bytes, unsigned *total_bytes)
{
    FAIL_IF_TOLD;
    size_t room = 0, total = 0;
    if (!free_bytes && !total_bytes)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = cuMemGetInfo_v2(&room, &total);
    if (result == CUDA_SUCCESS && free_bytes)
        *free_bytes = clamped(room);
    if (result == CUDA_SUCCESS && total_bytes)
        *total_bytes = clamped(total);
    return result;
}
