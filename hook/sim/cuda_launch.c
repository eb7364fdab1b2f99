/* Simulated CUDA driver: launches. Each becomes work of the length that the configuration gives its name, on
 * its stream or as a node of the graph being captured; nothing is computed.
 */
#include "captures.h"
#include "clock.h"
#include "execution.h"

#include <stdlib.h>

/* Whether each launch is to be waited for before it returns, as the real driver does for debugging. */
static bool waits_for_launches(void)
{
    const char *value = getenv("CUDA_LAUNCH_BLOCKING");
    return value && value[0] == '1';
}

static CUresult launch(const char *name, CUfunction function, const unsigned shape[6], CUstream handle,
                       bool per_thread)
{
    struct stream_call call;
    CUresult result = stream_begin(&call, name, handle, per_thread);
    bool capturing = false;
    if (result == CUDA_SUCCESS && !function)
        result = CUDA_ERROR_INVALID_HANDLE;
    for (int i = 0; i < 6 && result == CUDA_SUCCESS; i++)
        result = shape[i] ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        result = capture_work(call.stream, &capturing);
    if (result == CUDA_SUCCESS)
        clock_spend(1000ULL
                    * call.call.node->launch_us); /* the GPU hears of it when the call is nearly over */
    if (result == CUDA_SUCCESS && capturing)
        result = capture_node(call.stream,
                              (struct node_content){.kind = GRAPH_NODE_KERNEL, .function = function}, NULL);
    else if (result == CUDA_SUCCESS && functions_take_time(call.call.node))
        result = stream_push(&call, function_draw_ns(call.call.node, function, call.call.gpu->number),
                             function_meeting(call.call.node, function, call.call.gpu->number))
            ? CUDA_SUCCESS
            : CUDA_ERROR_OUT_OF_MEMORY;
    uint32_t row = result == CUDA_SUCCESS && !capturing && waits_for_launches() ? call.stream->row : 0;
    result = cuda_end(&call.call, result);
    if (row)
        execution_wait(row, execution_pushed(row));
    return result;
}

#define SHAPE                                                                                                \
    (unsigned[])                                                                                             \
    {                                                                                                        \
        grid_x, grid_y, grid_z, block_x, block_y, block_z                                                    \
    }

EXPORT CUresult cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                               unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                               CUstream stream, void **parameters, void **extra)
{
    (void)shared_bytes, (void)parameters, (void)extra;
    return launch(__func__, function, SHAPE, stream, false);
}

EXPORT CUresult cuLaunchKernel_ptsz(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                                    unsigned block_x, unsigned block_y, unsigned block_z,
                                    unsigned shared_bytes, CUstream stream, void **parameters, void **extra)
{
    (void)shared_bytes, (void)parameters, (void)extra;
    return launch(__func__, function, SHAPE, stream, true);
}

static CUresult launch_configured(const char *name, const CUlaunchConfig *config, CUfunction function,
                                  bool per_thread)
{
    static const CUlaunchConfig none; /* as malformed as NULL */
    config = config ? config : &none;
    const unsigned shape[] = {config->gridDimX,  config->gridDimY,  config->gridDimZ,
                              config->blockDimX, config->blockDimY, config->blockDimZ};
    return launch(name, function, shape, config->hStream, per_thread);
}

EXPORT CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **parameters,
                                 void **extra)
{
    (void)parameters, (void)extra;
    return launch_configured(__func__, config, function, false);
}

EXPORT CUresult cuLaunchKernelEx_ptsz(const CUlaunchConfig *config, CUfunction function, void **parameters,
                                      void **extra)
{
    (void)parameters, (void)extra;
    return launch_configured(__func__, config, function, true);
}

EXPORT CUresult cuLaunchCooperativeKernel(CUfunction function, unsigned grid_x, unsigned grid_y,
                                          unsigned grid_z, unsigned block_x, unsigned block_y,
                                          unsigned block_z, unsigned shared_bytes, CUstream stream,
                                          void **parameters)
{
    (void)shared_bytes, (void)parameters;
    return launch(__func__, function, SHAPE, stream, false);
}

EXPORT CUresult cuLaunchCooperativeKernel_ptsz(CUfunction function, unsigned grid_x, unsigned grid_y,
                                               unsigned grid_z, unsigned block_x, unsigned block_y,
                                               unsigned block_z, unsigned shared_bytes, CUstream stream,
                                               void **parameters)
{
    (void)shared_bytes, (void)parameters;
    return launch(__func__, function, SHAPE, stream, true);
}

EXPORT CUresult cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS *launches, unsigned count,
                                                     unsigned flags)
{
    (void)flags;
    struct cuda_call call;
    CUresult result = cuda_end(&call, cuda_begin(&call, __func__));
    if (result == CUDA_SUCCESS && (!launches || !count))
        result = CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < count && result == CUDA_SUCCESS; i++) {
        const CUDA_LAUNCH_PARAMS *one = &launches[i];
        const unsigned shape[] = {one->gridDimX,  one->gridDimY,  one->gridDimZ,
                                  one->blockDimX, one->blockDimY, one->blockDimZ};
        result = (uintptr_t)one->hStream > 2 ? launch(__func__, one->function, shape, one->hStream, false)
                                             : CUDA_ERROR_INVALID_VALUE;
    }
    return result;
}

/* The launches of CUDA 1: shape and arguments were set on the function before. */
static const unsigned unit[] = {1, 1, 1, 1, 1, 1};

EXPORT CUresult cuLaunch(CUfunction function)
{
    return launch(__func__, function, unit, NULL, false);
}

EXPORT CUresult cuLaunchGrid(CUfunction function, int width, int height)
{
    const unsigned shape[] = {(unsigned)(width > 0), (unsigned)(height > 0), 1, 1, 1, 1};
    return launch(__func__, function, shape, NULL, false);
}

EXPORT CUresult cuLaunchGridAsync(CUfunction function, int width, int height, CUstream stream)
{
    const unsigned shape[] = {(unsigned)(width > 0), (unsigned)(height > 0), 1, 1, 1, 1};
    return launch(__func__, function, shape, stream, false);
}
