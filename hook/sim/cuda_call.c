#include "cuda_call.h"

#include "captures.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MIB (1024ULL * 1024ULL)
#define UNTOLD_BYTES (128ULL << 30) /* of a GPU that shares the host's memory */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static atomic_bool initialised;
static atomic_int devices;
static char uuids[MAX_GPUS][TEXT_BYTES];

static void list_device(const struct sim_gpu *gpu)
{
    for (int i = 0; i < devices; i++)
        if (strcmp(uuids[i], gpu->uuid) == 0)
            return;
    memcpy(uuids[devices++], gpu->uuid, TEXT_BYTES);
}

/* What CUDA lists for a GPU of the container: itself, or of one in MIG mode the first of its devices that the
 * container has (one at most, as CUDA does), or nothing. */
static const struct sim_gpu *device_of(const struct sim_node *node, int position)
{
    if (!node->gpus[position].mig)
        return &node->gpus[position];
    for (size_t i = 0; i < node->part_count; i++)
        if (node->parts[i].parent == position && sim_node_shows(node, position, node->parts[i].uuid))
            return &node->parts[i];
    return NULL;
}

/* The GPU that one word of CUDA_VISIBLE_DEVICES names, or NULL. */
static const struct sim_gpu *named(const struct sim_node *node, const int *visible, size_t count,
                                   const char *word, size_t length)
{
    if (length == 0)
        return NULL;
    char *end;
    unsigned long ordinal = strtoul(word, &end, 10);
    if (end == word + length)
        return ordinal < count ? device_of(node, visible[ordinal]) : NULL;
    for (size_t i = 0; i < count; i++)
        if (strncmp(node->gpus[visible[i]].uuid, word, length) == 0)
            return device_of(node, visible[i]);
    for (size_t i = 0; i < node->part_count; i++)
        if (strncmp(node->parts[i].uuid, word, length) == 0
            && sim_node_shows(node, node->parts[i].parent, node->parts[i].uuid))
            return &node->parts[i];
    return NULL;
}

/* Called with the lock held. */
static void enumerate(const struct sim_node *node)
{
    int visible[MAX_GPUS];
    size_t count = sim_node_visible(node, visible);
    const char *word = getenv("CUDA_VISIBLE_DEVICES");
    for (size_t i = 0; !word && i < count; i++) {
        const struct sim_gpu *gpu = device_of(node, visible[i]);
        if (gpu)
            list_device(gpu);
    }
    while (word) {
        size_t length = strcspn(word, ",");
        const struct sim_gpu *gpu = named(node, visible, count, word, length);
        if (!gpu)
            break;
        list_device(gpu);
        word = word[length] ? word + length + 1 : NULL;
    }
}

EXPORT CUresult cuInit(unsigned flags)
{
    if (flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    const struct sim_node *node = sim_node_acquire();
    CUresult result = CUDA_SUCCESS;
    if (!node || node->driver == DRIVER_ABSENT)
        result = CUDA_ERROR_NO_DEVICE;
    else if (node->driver == DRIVER_MISMATCH)
        result = CUDA_ERROR_SYSTEM_DRIVER_MISMATCH;
    else
        result = (CUresult)sim_node_failure(node, __func__, -1);
    if (result == CUDA_SUCCESS) {
        pthread_mutex_lock(&lock);
        if (!initialised)
            enumerate(node);
        initialised = devices > 0;
        result = initialised ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE;
        pthread_mutex_unlock(&lock);
    }
    sim_node_release(node);
    return result;
}

int device_count(void)
{
    return atomic_load_explicit(&devices, memory_order_acquire);
}

const char *device_uuid(CUdevice device)
{
    return uuids[device];
}

_Noreturn void sim_used_after_its_end(const char *function)
{
    fprintf(stderr, "simulated driver: %s of something that is gone\n", function);
    abort();
}

static const struct sim_node *acquire_unless_held(const char *function)
{
    const struct timespec pause = {.tv_nsec = 1000000};
    const struct sim_node *node;
    while ((node = sim_node_acquire()) && node->held[0] && strcmp(node->held, function) == 0) {
        sim_node_release(node);
        nanosleep(&pause, NULL);
    }
    return node;
}

CUresult cuda_told_to_fail(const char *function)
{
    const struct sim_node *node = acquire_unless_held(function);
    CUresult result = node ? (CUresult)sim_node_failure(node, function, -1) : CUDA_SUCCESS;
    sim_node_release(node);
    return result;
}

CUresult cuda_begin(struct cuda_call *call, const char *function)
{
    *call = (struct cuda_call){.position = -1};
    if (!atomic_load_explicit(&initialised, memory_order_acquire))
        return CUDA_ERROR_NOT_INITIALIZED;
    call->node = acquire_unless_held(function);
    if (!call->node)
        return CUDA_ERROR_UNKNOWN;
    CUresult result = (CUresult)sim_node_failure(call->node, function, -1);
    return result == CUDA_SUCCESS ? capture_unsafe(function) : result;
}

CUresult cuda_begin_device(struct cuda_call *call, const char *function, CUdevice device)
{
    CUresult result = cuda_begin(call, function);
    if (result != CUDA_SUCCESS)
        return result;
    if (device < 0 || device >= device_count())
        return CUDA_ERROR_INVALID_DEVICE;
    const struct sim_gpu *part = sim_node_part(call->node, uuids[device]); /* a listed uuid never changes */
    call->position = part ? part->parent : sim_node_find(call->node, uuids[device]);
    if (call->position < 0 || call->node->gpus[call->position].lost)
        return CUDA_ERROR_UNKNOWN;
    call->gpu = part ? part : &call->node->gpus[call->position];
    return (CUresult)sim_node_failure(call->node, function, call->position);
}

CUresult cuda_begin_context(struct cuda_call *call, const char *function)
{
    CUcontext context = current_context();
    if (context)
        return cuda_begin_device(call, function, context->device);
    CUresult result = cuda_begin(call, function);
    return result == CUDA_SUCCESS ? CUDA_ERROR_INVALID_CONTEXT : result;
}

CUresult cuda_end(struct cuda_call *call, CUresult result)
{
    sim_node_release(call->node);
    return result;
}

uint64_t capacity_bytes(const struct cuda_call *call)
{
    if (call->gpu->memory_mib == UNKNOWN)
        return UNTOLD_BYTES;
    uint64_t taken_mib = (uint64_t)call->gpu->reserved_mib;
    for (size_t i = 0; call->gpu->parent < 0 && i < call->node->process_count; i++)
        if (call->node->processes[i].gpu == call->position)
            taken_mib += call->node->processes[i].memory_mib;
    uint64_t total_mib = (uint64_t)call->gpu->memory_mib;
    return total_mib > taken_mib ? (total_mib - taken_mib) * MIB : 0;
}
