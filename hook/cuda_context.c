/* Contexts, and what they cost: measured, and charged when they are made. */
#include "contexts.h"
#include "gpu_time.h"
#include "guesses.h"
#include "looks.h"
#include "overhead.h"
#include "streams.h"
#include "wrap.h"

/* --- contexts that the program makes -------------------------------------------------------------------- */

static CUresult retain(CUcontext *context, CUdevice device);
static CUresult release(CUdevice device);

/* As what a green context is made current; and noted here. */
static CUcontext own_context(CUgreenCtx green)
{
    const struct real_cuda *real = real_cuda();
    CUcontext context;
    return real->cuCtxFromGreenCtx && CALL(cuCtxFromGreenCtx, &context, green) == CUDA_SUCCESS
        ? context
        : (CUcontext)(void *)green;
}

/* What was made, of which one is NULL, is charged; if it does not fit, it is ended. */
static CUresult made(struct overhead *overhead, CUresult result, CUcontext *context, CUgreenCtx *green,
                     CUdevice device)
{
    const struct real_cuda *real = real_cuda();
    struct cost cost;
    if (result != CUDA_SUCCESS || (!context && !green)) {
        overhead_failed(overhead);
        return result;
    }
    if (!overhead_made(overhead, &cost)
        && (green ? real->cuGreenCtxDestroy && CALL(cuGreenCtxDestroy, *green) == CUDA_SUCCESS
                  : real->cuCtxDestroy_v2 && CALL(cuCtxDestroy_v2, *context) == CUDA_SUCCESS)) {
        overhead_failed(overhead);
        if (green)
            *green = NULL;
        else
            *context = NULL;
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    context_made(green ? own_context(*green) : *context, device, cost, green != NULL);
    return result;
}

/* The shape of a wrapper that makes a context at `context`, or a green one at `green`. */
#define MAKE_CONTEXT(symbol, of, device, context, green, ...)                                                \
    const struct real_cuda *real = real_cuda();                                                              \
    struct overhead overhead;                                                                                \
    if (!real || !real->symbol)                                                                              \
        return CUDA_ERROR_NOT_INITIALIZED;                                                                   \
    CUresult result = overhead_begin(&overhead, device, of, 0, #symbol);                                     \
    if (result != CUDA_SUCCESS)                                                                              \
        return result;                                                                                       \
    return made(&overhead, CALL(symbol, __VA_ARGS__), context, green, device)

EXPORT CUresult cuCtxCreate(CUcontext *context, unsigned flags, CUdevice device)
{
    MAKE_CONTEXT(cuCtxCreate, OVERHEAD_CONTEXT, device, context, NULL, context, flags, device);
}

EXPORT CUresult cuCtxCreate_v2(CUcontext *context, unsigned flags, CUdevice device)
{
    MAKE_CONTEXT(cuCtxCreate_v2, OVERHEAD_CONTEXT, device, context, NULL, context, flags, device);
}

EXPORT CUresult cuCtxCreate_v3(CUcontext *context, CUexecAffinityParam *affinity, int count, unsigned flags,
                               CUdevice device)
{
    MAKE_CONTEXT(cuCtxCreate_v3, OVERHEAD_CONTEXT, device, context, NULL, context, affinity, count, flags,
                 device);
}

EXPORT CUresult cuCtxCreate_v4(CUcontext *context, CUctxCreateParams *parameters, unsigned flags,
                               CUdevice device)
{
    MAKE_CONTEXT(cuCtxCreate_v4, OVERHEAD_CONTEXT, device, context, NULL, context, parameters, flags, device);
}

static CUresult make_green(CUgreenCtx *context, CUdevResourceDesc description, CUdevice device,
                           unsigned flags)
{
    MAKE_CONTEXT(cuGreenCtxCreate, OVERHEAD_PART_OF_CONTEXT, device, NULL, context, context, description,
                 device, flags);
}

/* The driver retains the primary context for it. We do so as well, to know that context, and when it ends. */
EXPORT CUresult cuGreenCtxCreate(CUgreenCtx *context, CUdevResourceDesc description, CUdevice device,
                                 unsigned flags)
{
    const struct real_cuda *real = real_cuda();
    CUcontext primary;
    if (!real || !real->cuGreenCtxCreate)
        return CUDA_ERROR_NOT_INITIALIZED;
    if (!charging())
        return real->cuGreenCtxCreate(context, description, device, flags);
    CUresult result = retain(&primary, device);
    if (result != CUDA_SUCCESS)
        return result;
    result = make_green(context, description, device, flags);
    if (result != CUDA_SUCCESS)
        release(device);
    return result;
}

static CUresult end_context(CUresult (*end)(CUcontext), CUcontext context)
{
    if (!end)
        return CUDA_ERROR_NOT_INITIALIZED;
    if (!charging())
        return end(context);
    uint32_t held = gpu_time_context_ending(context, true);
    stream_ends(NULL);
    struct context_end ending;
    context_ending(&ending, context, true);
    depth_enter();
    CUresult result = end(context);
    depth_leave();
    gpu_time_context_ended(held, context, result == CUDA_SUCCESS);
    return context_ended(&ending, result);
}

EXPORT CUresult cuCtxDestroy(CUcontext context)
{
    const struct real_cuda *real = real_cuda();
    return end_context(real ? real->cuCtxDestroy : NULL, context);
}

EXPORT CUresult cuCtxDestroy_v2(CUcontext context)
{
    const struct real_cuda *real = real_cuda();
    return end_context(real ? real->cuCtxDestroy_v2 : NULL, context);
}

/* Older ways, and still those of PyCUDA, and of many a program that looks what memory there is: who attaches
 * is one more user of the current context, and with the last one that detaches it ends. */

EXPORT CUresult cuCtxAttach(CUcontext *context, unsigned flags)
{
    const struct real_cuda *real = real_cuda();
    CUcontext current = NULL;
    if (!real || !real->cuCtxAttach)
        return CUDA_ERROR_NOT_INITIALIZED;
    if (!charging())
        return real->cuCtxAttach(context, flags);
    /* What nobody knows that it outlasts its maker's end would be given back with that. */
    CUresult result = real->cuCtxGetCurrent ? CALL(cuCtxGetCurrent, &current) : CUDA_ERROR_NOT_SUPPORTED;
    if (result != CUDA_SUCCESS)
        return result;
    if (current && !context_users(current, 1))
        return CUDA_ERROR_OUT_OF_MEMORY;
    result = CALL(cuCtxAttach, context, flags);
    if (current && result != CUDA_SUCCESS)
        context_users(current, -1);
    return result;
}

EXPORT CUresult cuCtxDetach(CUcontext context)
{
    const struct real_cuda *real = real_cuda();
    if (!real || !charging() || !context_users(context, -1))
        return end_context(real ? real->cuCtxDetach : NULL, context);
    if (!real->cuCtxDetach)
        return CUDA_ERROR_NOT_INITIALIZED;
    CUresult result = CALL(cuCtxDetach, context);
    if (result != CUDA_SUCCESS)
        context_users(context, 1);
    return result;
}

EXPORT CUresult cuGreenCtxDestroy(CUgreenCtx green)
{
    const struct real_cuda *real = real_cuda();
    if (!real || !real->cuGreenCtxDestroy)
        return CUDA_ERROR_NOT_INITIALIZED;
    if (!green || !charging())
        return real->cuGreenCtxDestroy(green);
    stream_ends(NULL);
    struct context_end ending;
    context_ending(&ending, own_context(green), false);
    CUdevice retained = context_retains(ending.account);
    /* What is measured, allocated or loaded there is the primary context's, and noted as such. */
    CUresult result = context_ended(&ending, CALL(cuGreenCtxDestroy, green));
    if (result == CUDA_SUCCESS && retained >= 0)
        release(retained);
    return result;
}

/* --- a device's own context ----------------------------------------------------------------------------- */

/* It does not fit. False where that cannot be undone. */
static bool undo_retain(const struct real_cuda *real, CUdevice device)
{
    CUresult (*release)(CUdevice) = real->cuDevicePrimaryCtxRelease_v2 ? real->cuDevicePrimaryCtxRelease_v2
                                                                       : real->cuDevicePrimaryCtxRelease;
    depth_enter();
    bool undone = release && release(device) == CUDA_SUCCESS;
    depth_leave();
    return undone;
}

/* The first retain makes it; all later ones only count. */
static CUresult retain_first(const struct real_cuda *real, CUcontext *context, CUdevice device)
{
    struct overhead overhead;
    struct cost cost = {0};
    CUresult result = overhead_begin(&overhead, device, OVERHEAD_CONTEXT, 0, "cuDevicePrimaryCtxRetain");
    if (result == CUDA_SUCCESS) {
        result = CALL(cuDevicePrimaryCtxRetain, context, device);
        if (result == CUDA_SUCCESS && !overhead_made(&overhead, &cost) && undo_retain(real, device)) {
            result = CUDA_ERROR_OUT_OF_MEMORY;
            *context = NULL;
        }
        if (result != CUDA_SUCCESS)
            overhead_failed(&overhead);
    }
    primary_retained(device, result == CUDA_SUCCESS ? *context : NULL, true, result, cost);
    return result;
}

static CUresult retain(CUcontext *context, CUdevice device)
{
    const struct real_cuda *real = real_cuda();
    if (!real || !real->cuDevicePrimaryCtxRetain)
        return CUDA_ERROR_NOT_INITIALIZED;
    if (!charging() || !context)
        return CALL(cuDevicePrimaryCtxRetain, context, device);
    if (primary_retaining(device))
        return retain_first(real, context, device);
    CUresult result = CALL(cuDevicePrimaryCtxRetain, context, device);
    primary_retained(device, *context, false, result, (struct cost){0});
    return result;
}

EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
    return retain(context, device);
}

static CUresult end_primary(CUresult (*end)(CUdevice), CUdevice device, bool reset)
{
    bool last;
    if (!end)
        return CUDA_ERROR_NOT_INITIALIZED;
    if (!charging())
        return end(device);
    CUcontext context = primary_releasing(device, &last);
    uint32_t held = gpu_time_context_ending(context, reset || last);
    stream_ends(NULL);
    struct context_end ending = {0};
    if (reset)
        context_ending(&ending, context, context != NULL);
    else
        looks_calls(true);
    depth_enter();
    CUresult result = end(device);
    depth_leave();
    bool ended = result == CUDA_SUCCESS && (reset || primary_released(device, last));
    gpu_time_context_ended(held, context, ended);
    if (!reset)
        looks_calls(false);
    else if (context_ended(&ending, result) == CUDA_SUCCESS)
        primary_was_reset(device);
    return result;
}

#define END_PRIMARY(symbol, reset)                                                                           \
    const struct real_cuda *real = real_cuda();                                                              \
    return end_primary(real ? real->symbol : NULL, device, reset)

EXPORT CUresult cuDevicePrimaryCtxRelease(CUdevice device)
{
    END_PRIMARY(cuDevicePrimaryCtxRelease, false);
}

static CUresult release(CUdevice device)
{
    END_PRIMARY(cuDevicePrimaryCtxRelease_v2, false);
}

EXPORT CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
    return release(device);
}

EXPORT CUresult cuDevicePrimaryCtxReset(CUdevice device)
{
    END_PRIMARY(cuDevicePrimaryCtxReset, true);
}

EXPORT CUresult cuDevicePrimaryCtxReset_v2(CUdevice device)
{
    END_PRIMARY(cuDevicePrimaryCtxReset_v2, true);
}

/* --- heaps and stacks of a context ---------------------------------------------------------------------- */

/* A limit that does not fit is set back to what it was. */
EXPORT CUresult cuCtxSetLimit(CUlimit limit, size_t value)
{
    const struct real_cuda *real = real_cuda();
    struct overhead overhead;
    struct cost cost;
    uint64_t less;
    size_t before = 0;
    CUcontext context = NULL;
    CUdevice device;
    if (!real || !real->cuCtxSetLimit)
        return CUDA_ERROR_NOT_INITIALIZED;
    if (!charging() || !real->cuCtxGetLimit || !real->cuCtxGetDevice || !real->cuCtxGetCurrent
        || real->cuCtxGetDevice(&device) != CUDA_SUCCESS || real->cuCtxGetCurrent(&context) != CUDA_SUCCESS
        || real->cuCtxGetLimit(&before, limit) != CUDA_SUCCESS)
        return CALL(cuCtxSetLimit, limit, value);
    bool in_bytes = limit == LIMIT_PRINTF_FIFO_SIZE || limit == LIMIT_MALLOC_HEAP_SIZE; /* of the GPU's */
    CUresult result = overhead_begin(&overhead, device, OVERHEAD_PART_OF_CONTEXT,
                                     in_bytes && value > before ? value - before : 0, "cuCtxSetLimit");
    if (result != CUDA_SUCCESS)
        return result;
    result = CALL(cuCtxSetLimit, limit, value);
    if (result == CUDA_SUCCESS && overhead_changed(&overhead, &cost, &less)) {
        context = context_whole(context);
        uint64_t lowered = in_bytes && before > value ? before - value : 0;
        if (overhead.guessed && less > lowered)
            less = lowered; /* the rest neighbours gave back */
        context_grew(context, device, cost);
        context_shrank(context, less);
        if (overhead.guessed)
            context_doubted(context, lowered - less);
        return result;
    }
    if (result == CUDA_SUCCESS) {
        CALL(cuCtxSetLimit, limit, before);
        result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    overhead_failed(&overhead);
    return result;
}
