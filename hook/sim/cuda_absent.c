/* Simulated CUDA driver: a function of the table that no other file defines is there, and not supported. */
#include "../symbols.h"
#include "cuda_call.h"
#include "graph_memory.h"
#include "pools.h"

CUresult sim_unsupported(void);

CUresult sim_unsupported(void)
{
    return CUDA_ERROR_NOT_SUPPORTED;
}

#define X(symbol, name, since, flags)                                                                        \
    extern __typeof__(symbol) symbol __attribute__((weak, alias("sim_unsupported"), visibility("default")));
CUDA_SYMBOLS(X)
CUDA_USED(X)
CUDA_SIMULATED(X)
#undef X

__attribute__((weak)) void sim_pools_synchronised(void)
{
}

__attribute__((weak)) bool sim_pools_free(CUdeviceptr address)
{
    (void)address;
    return false;
}
