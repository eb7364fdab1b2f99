/* Everything that makes the GPU compute. */
#include "graph_launches.h"
#include "launch_gate.h"
#include "streams.h"
#include "wrap.h"

enum { MOST_DEVICES = 64 };

/* For what fewer launch by, where one more call for all of them is smaller. */
static __attribute__((noinline)) bool is_open(void)
{
    return launch_gate_is_open();
}

EXPORT CUresult cuLaunchKernel(CUfunction function, unsigned x, unsigned y, unsigned z, unsigned block_x,
                               unsigned block_y, unsigned block_z, unsigned shared_bytes, CUstream stream,
                               void **parameters, void **extra)
{
    const struct real_cuda *real = real_cuda();
    struct launch launch;
    if (!real || !real->cuLaunchKernel)
        return CUDA_ERROR_NOT_INITIALIZED;
    if (launch_gate_is_open())
        return CALL(cuLaunchKernel, function, x, y, z, block_x, block_y, block_z, shared_bytes, stream,
                    parameters, extra);
    launch_gate_pass(&launch, stream, false,
                     estimate_key(function, x, y, z, block_x, block_y, block_z, shared_bytes));
    CUresult result = CALL(cuLaunchKernel, function, x, y, z, block_x, block_y, block_z, shared_bytes, stream,
                           parameters, extra);
    launch_gate_passed(&launch, result);
    return result;
}

SELDOM EXPORT CUresult cuLaunchKernel_ptsz(CUfunction function, unsigned x, unsigned y, unsigned z,
                                           unsigned block_x, unsigned block_y, unsigned block_z,
                                           unsigned shared_bytes, CUstream stream, void **parameters,
                                           void **extra)
{
    const struct real_cuda *real = real_cuda();
    struct launch launch;
    if (!real || !real->cuLaunchKernel_ptsz)
        return CUDA_ERROR_NOT_INITIALIZED;
    bool limited = !is_open();
    if (limited)
        launch_gate_pass(&launch, stream, true,
                         estimate_key(function, x, y, z, block_x, block_y, block_z, shared_bytes));
    CUresult result = CALL(cuLaunchKernel_ptsz, function, x, y, z, block_x, block_y, block_z, shared_bytes,
                           stream, parameters, extra);
    if (limited)
        launch_gate_passed(&launch, result);
    return result;
}

typedef CUresult by_config(const CUlaunchConfig *, CUfunction, void **, void **);

/* A launch without a configuration is for the driver to refuse. */
static __attribute__((noinline)) CUresult launch_by_config(by_config *call, bool own_stream,
                                                           const CUlaunchConfig *c, CUfunction function,
                                                           void **parameters, void **extra)
{
    struct launch launch;
    if (!call)
        return CUDA_ERROR_NOT_INITIALIZED;
    bool limited = c && !is_open();
    if (limited)
        launch_gate_pass(&launch, c->hStream, own_stream,
                         estimate_key(function, c->gridDimX, c->gridDimY, c->gridDimZ, c->blockDimX,
                                      c->blockDimY, c->blockDimZ, c->sharedMemBytes));
    depth_enter();
    CUresult result = call(c, function, parameters, extra);
    depth_leave();
    if (limited)
        launch_gate_passed(&launch, result);
    return result;
}

EXPORT CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **parameters,
                                 void **extra)
{
    const struct real_cuda *real = real_cuda();
    return launch_by_config(real ? real->cuLaunchKernelEx : NULL, false, config, function, parameters, extra);
}

EXPORT CUresult cuLaunchKernelEx_ptsz(const CUlaunchConfig *config, CUfunction function, void **parameters,
                                      void **extra)
{
    const struct real_cuda *real = real_cuda();
    return launch_by_config(real ? real->cuLaunchKernelEx_ptsz : NULL, true, config, function, parameters,
                            extra);
}

/* Few programs launch so, and a further call adds little. */
#define COOPERATIVE(symbol, own_stream)                                                                      \
    const struct real_cuda *real = real_cuda();                                                              \
    return launch_cooperative(real ? real->symbol : NULL, own_stream, function, x, y, z, block_x, block_y,   \
                              block_z, shared_bytes, stream, parameters)

static __attribute__((noinline, minsize))
CUresult launch_cooperative(__typeof__(&cuLaunchCooperativeKernel) call, bool own_stream, CUfunction function,
                            unsigned x, unsigned y, unsigned z, unsigned block_x, unsigned block_y,
                            unsigned block_z, unsigned shared_bytes, CUstream stream, void **parameters)
{
    struct launch launch;
    if (!call)
        return CUDA_ERROR_NOT_INITIALIZED;
    launch_gate_pass(&launch, stream, own_stream,
                     estimate_key(function, x, y, z, block_x, block_y, block_z, shared_bytes));
    depth_enter();
    CUresult result = call(function, x, y, z, block_x, block_y, block_z, shared_bytes, stream, parameters);
    depth_leave();
    launch_gate_passed(&launch, result);
    return result;
}

SELDOM EXPORT CUresult cuLaunchCooperativeKernel(CUfunction function, unsigned x, unsigned y, unsigned z,
                                                 unsigned block_x, unsigned block_y, unsigned block_z,
                                                 unsigned shared_bytes, CUstream stream, void **parameters)
{
    COOPERATIVE(cuLaunchCooperativeKernel, false);
}

SELDOM EXPORT CUresult cuLaunchCooperativeKernel_ptsz(CUfunction function, unsigned x, unsigned y, unsigned z,
                                                      unsigned block_x, unsigned block_y, unsigned block_z,
                                                      unsigned shared_bytes, CUstream stream,
                                                      void **parameters)
{
    COOPERATIVE(cuLaunchCooperativeKernel_ptsz, true);
}

/* The functions of CUDA 2: their block is a property of the function, their stream the legacy one. */

enum grid_call { ONE_BLOCK, GRID, GRID_ASYNC };

static SELDOM __attribute__((noinline)) CUresult launch_grid(enum grid_call way, CUfunction function, int x,
                                                             int y, CUstream stream)
{
    const struct real_cuda *real = real_cuda();
    struct launch launch;
    bool there = real
        && (way == ONE_BLOCK  ? real->cuLaunch != NULL
                : way == GRID ? real->cuLaunchGrid != NULL
                              : real->cuLaunchGridAsync != NULL);
    if (!there)
        return CUDA_ERROR_NOT_INITIALIZED;
    launch_gate_pass(&launch, stream, false, estimate_key(function, (unsigned)x, (unsigned)y, 1, 0, 0, 0, 0));
    depth_enter();
    CUresult result = way == ONE_BLOCK ? real->cuLaunch(function)
        : way == GRID                  ? real->cuLaunchGrid(function, x, y)
                                       : real->cuLaunchGridAsync(function, x, y, stream);
    depth_leave();
    launch_gate_passed(&launch, result);
    return result;
}

SELDOM EXPORT CUresult cuLaunch(CUfunction function)
{
    return launch_grid(ONE_BLOCK, function, 1, 1, NULL);
}

SELDOM EXPORT CUresult cuLaunchGrid(CUfunction function, int x, int y)
{
    return launch_grid(GRID, function, x, y, NULL);
}

SELDOM EXPORT CUresult cuLaunchGridAsync(CUfunction function, int x, int y, CUstream stream)
{
    return launch_grid(GRID_ASYNC, function, x, y, stream);
}

/* --- on several devices at once ------------------------------------------------------------------------- */

SELDOM EXPORT CUresult cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS *entries, unsigned count,
                                                            unsigned flags)
{
    const struct real_cuda *real = real_cuda();
    struct launch launches[MAX_DEVICES];
    if (!real || !real->cuLaunchCooperativeKernelMultiDevice)
        return CUDA_ERROR_NOT_INITIALIZED;
    unsigned charged = 0;
    uint64_t seen = 0; /* a device twice is an error as well; that one is not to wait for the first */
    /* More devices than there are is an error, and more than can be counted are not charged. */
    while (entries && count <= MOST_DEVICES && charged < count && charged < MAX_DEVICES) {
        const CUDA_LAUNCH_PARAMS *e = &entries[charged];
        uint64_t device = UINT64_C(1) << (place_of_stream(e->hStream) & (MOST_DEVICES - 1));
        if (seen & device)
            break;
        seen |= device;
        launch_gate_pass(&launches[charged++], e->hStream, false,
                         estimate_key(e->function, e->gridDimX, e->gridDimY, e->gridDimZ, e->blockDimX,
                                      e->blockDimY, e->blockDimZ, e->sharedMemBytes));
    }
    CUresult result = CALL(cuLaunchCooperativeKernelMultiDevice, entries, count, flags);
    for (unsigned i = 0; i < charged; i++)
        launch_gate_passed(&launches[i], result);
    return result;
}

/* --- graphs: one launch each ---------------------------------------------------------------------------- */

/* Memory is asked for behind the gate: what is asked for and not taken yet nobody else gets, however long
 * that waits for its share. */

typedef CUresult by_graph(CUgraphExec, CUstream);

static __attribute__((noinline)) CUresult launch_graph(by_graph *call, bool own_stream, CUgraphExec exec,
                                                       CUstream stream, const char *function)
{
    struct launch launch;
    struct graph_launch memory;
    if (!call)
        return CUDA_ERROR_NOT_INITIALIZED;
    launch_gate_pass(&launch, stream, own_stream, graph_kind(exec));
    CUresult result = graph_memory_before_launch(&memory, exec, stream, own_stream, true, function);
    if (memory.follow)
        launch_gate_delayed(&launch);
    if (result == CUDA_SUCCESS) {
        depth_enter();
        result = call(exec, stream);
        depth_leave();
    }
    launch_gate_passed(&launch, result);
    graph_memory_after_launch(&memory, result);
    return result;
}

EXPORT CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream)
{
    const struct real_cuda *real = real_cuda();
    return launch_graph(real ? real->cuGraphLaunch : NULL, false, exec, stream, "cuGraphLaunch");
}

EXPORT CUresult cuGraphLaunch_ptsz(CUgraphExec exec, CUstream stream)
{
    const struct real_cuda *real = real_cuda();
    return launch_graph(real ? real->cuGraphLaunch_ptsz : NULL, true, exec, stream, "cuGraphLaunch_ptsz");
}
