/* What every function of the simulated CUDA driver does first, and the devices it sees. Thread safe.
 *
 * A device ordinal stands for a uuid from cuInit on: NVIDIA_VISIBLE_DEVICES says which GPUs are in the
 * container, CUDA_VISIBLE_DEVICES (ordinals or uuid prefixes, up to the first that names none) which of them
 * CUDA lists, in its order.
 */
#ifndef VGPU_SIM_CUDA_CALL_H
#define VGPU_SIM_CUDA_CALL_H

#include "../cuda_abi.h"
#include "node.h"

#include <stdbool.h>

#define EXPORT __attribute__((visibility("default")))

enum { LOCATION_TO_COME = 9 }; /* CUmemLocationType of a release that nobody knows: on the device `id` */

struct CUctx_st {
    CUdevice device;
    bool primary;
    unsigned references; /* of a primary context */
    bool reset; /* since it was made last */
    unsigned long long id; /* 0: a green one */
    unsigned attached; /* users besides who made it, or retains it */
    uint64_t bytes, heap_bytes; /* what it holds of the GPU */
    CUcontext parent; /* of a green context: the primary one, of which all but its streams is; else NULL */
};

static inline CUcontext whole_context(CUcontext context)
{
    return context && context->parent ? context->parent : context;
}

struct cuda_call {
    const struct sim_node *node;
    const struct sim_gpu *gpu;
    int position;
};

/* Each begin must be followed by cuda_end with the call's answer, whatever begin itself answered. */
CUresult cuda_begin(struct cuda_call *call, const char *function);
CUresult cuda_begin_device(struct cuda_call *call, const char *function, CUdevice device);
CUresult cuda_begin_context(struct cuda_call *call,
                            const char *function); /* the device of the current context */
CUresult cuda_end(struct cuda_call *call, CUresult result);

/* The code that the configuration tells this function to fail with; for those that work without a begin. */
CUresult cuda_told_to_fail(const char *function);

#define FAIL_IF_TOLD                                                                                         \
    do {                                                                                                     \
        CUresult told_ = cuda_told_to_fail(__func__);                                                        \
        if (told_ != CUDA_SUCCESS)                                                                           \
            return told_;                                                                                    \
    } while (0)

/* What the context is called in execution.h. Green contexts take their turns with their device's primary one.
 */
static inline uint64_t context_number(const struct CUctx_st *context)
{
    return context->primary ? 0 : context->id;
}

/* The context on top of this thread's stack, or NULL. */
CUcontext current_context(void);

/* Bytes that programs can have of this GPU: all but what the driver and the listed processes hold. */
uint64_t capacity_bytes(const struct cuda_call *call);

int device_count(void);

/* Free what was allocated in the context, which ends; and the streams and events in it. */
void sim_memory_end_context(CUcontext context);
void sim_streams_end_context(CUcontext context);
void sim_events_end_context(CUcontext context);

/* The program uses a handle of something that is gone: with a real driver anything may happen. */
_Noreturn void sim_used_after_its_end(const char *function);

/* Events of this process, for tests. */
EXPORT unsigned sim_event_count(void);

/* What the device is called; valid for ever. */
const char *device_uuid(CUdevice device);

#endif
