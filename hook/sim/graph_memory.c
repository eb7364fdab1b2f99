#include "graph_memory.h"
#include "cuda_call.h"
#include "memory.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define GRAPH_STEP_BYTES (UINT64_C(32) << 20)

enum { USED_CURRENT, USED_HIGH, RESERVED_CURRENT, RESERVED_HIGH };

struct node {
    struct node *next;
    CUdeviceptr address;
    uint64_t bytes;
    CUdevice device;
    bool live, orphaned; /* orphaned: no graph has it any more */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct node *nodes;
static CUdeviceptr next_address = 0x300000000000ULL;
static uint64_t used[MAX_GPUS], used_high[MAX_GPUS], reserved[MAX_GPUS], reserved_high[MAX_GPUS];

/* As a CUDA context does not survive fork, neither do its graphs. */
static void forget_after_fork(void)
{
    pthread_mutex_init(&lock, NULL);
    nodes = NULL;
    memset(used, 0, sizeof used);
    memset(reserved, 0, sizeof reserved);
}

static __attribute__((constructor)) void watch_forks(void)
{
    pthread_atfork(NULL, NULL, forget_after_fork);
}

static struct node **find(CUdeviceptr address)
{
    struct node **link = &nodes;
    while (*link && (*link)->address != address)
        link = &(*link)->next;
    return link;
}

CUresult sim_graph_memory_node(CUdevice device, uint64_t bytes, CUdeviceptr *address)
{
    if (!address || bytes == 0 || device < 0 || device >= device_count())
        return CUDA_ERROR_INVALID_VALUE;
    if (bytes > UINT64_MAX / 4)
        return CUDA_ERROR_OUT_OF_MEMORY;
    struct node *node = calloc(1, sizeof *node);
    if (!node)
        return CUDA_ERROR_OUT_OF_MEMORY;
    node->bytes = (bytes + 511) / 512 * 512;
    node->device = device;
    pthread_mutex_lock(&lock);
    *address = node->address = next_address;
    next_address += node->bytes;
    node->next = nodes;
    nodes = node;
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}

void sim_graph_memory_forget(CUdeviceptr address)
{
    pthread_mutex_lock(&lock);
    struct node **link = find(address), *node = *link;
    if (node && node->live) {
        node->orphaned = true;
        node = NULL;
    } else if (node) {
        *link = node->next;
    }
    pthread_mutex_unlock(&lock);
    free(node);
}

static void rise(uint64_t *high, uint64_t now)
{
    if (*high < now)
        *high = now;
}

/* Called with the lock held. */
static CUresult grow(const struct cuda_call *call, CUdevice device, uint64_t bytes)
{
    uint64_t wanted = (used[device] + bytes + GRAPH_STEP_BYTES - 1) / GRAPH_STEP_BYTES * GRAPH_STEP_BYTES;
    if (wanted <= reserved[device])
        return CUDA_SUCCESS;
    switch (sim_memory_take(call->gpu->uuid, wanted - reserved[device], capacity_bytes(call))) {
    case SIM_MEMORY_DONE:
        reserved[device] = wanted;
        rise(&reserved_high[device], wanted);
        return CUDA_SUCCESS;
    case SIM_MEMORY_FULL:
        return CUDA_ERROR_OUT_OF_MEMORY;
    default:
        return CUDA_ERROR_OPERATING_SYSTEM;
    }
}

CUresult sim_graph_memory_allocate(CUdeviceptr address)
{
    struct cuda_call call;
    pthread_mutex_lock(&lock);
    struct node *node = *find(address);
    if (!node || node->live) {
        pthread_mutex_unlock(&lock);
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUresult result = cuda_begin_device(&call, "cuGraphLaunch.memory", node->device);
    if (result == CUDA_SUCCESS)
        result = grow(&call, node->device, node->bytes);
    if (result == CUDA_SUCCESS) {
        node->live = true;
        used[node->device] += node->bytes;
        rise(&used_high[node->device], used[node->device]);
    }
    pthread_mutex_unlock(&lock);
    return cuda_end(&call, result);
}

bool sim_graph_memory_live(CUdeviceptr address)
{
    pthread_mutex_lock(&lock);
    const struct node *node = *find(address);
    bool live = node && node->live;
    pthread_mutex_unlock(&lock);
    return live;
}

bool sim_graph_memory_free(CUdeviceptr address)
{
    pthread_mutex_lock(&lock);
    struct node **link = find(address), *node = *link;
    bool live = node && node->live, orphaned = live && node->orphaned;
    if (live) {
        node->live = false;
        used[node->device] -= node->bytes;
    }
    if (orphaned)
        *link = node->next;
    pthread_mutex_unlock(&lock);
    if (orphaned)
        free(node);
    return live;
}

EXPORT CUresult cuDeviceGetGraphMemAttribute(CUdevice device, CUgraphMem_attribute attribute, void *value)
{
    struct cuda_call call;
    CUresult result = cuda_begin_device(&call, __func__, device);
    if (result == CUDA_SUCCESS && (!value || attribute < USED_CURRENT || attribute > RESERVED_HIGH))
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS) {
        const uint64_t *const figures[] = {used, used_high, reserved, reserved_high};
        pthread_mutex_lock(&lock);
        *(cuuint64_t *)value = figures[attribute][device];
        pthread_mutex_unlock(&lock);
    }
    return cuda_end(&call, result);
}

EXPORT CUresult cuDeviceGraphMemTrim(CUdevice device)
{
    struct cuda_call call;
    CUresult result = cuda_begin_device(&call, __func__, device);
    if (result == CUDA_SUCCESS) {
        pthread_mutex_lock(&lock);
        uint64_t kept = (used[device] + GRAPH_STEP_BYTES - 1) / GRAPH_STEP_BYTES * GRAPH_STEP_BYTES;
        if (reserved[device] > kept) {
            sim_memory_give(call.gpu->uuid, reserved[device] - kept, false);
            reserved[device] = kept;
        }
        pthread_mutex_unlock(&lock);
    }
    return cuda_end(&call, result);
}
