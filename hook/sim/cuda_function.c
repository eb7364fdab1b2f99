/* Simulated CUDA driver: functions of modules, and the time that each run of them takes. */
#include "functions.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct CUfunc_st *functions;
static _Atomic uint64_t draws, launches[MAX_KERNELS];

CUfunction function_named(CUmodule module, const char *name)
{
    pthread_mutex_lock(&lock);
    struct CUfunc_st *function = functions;
    while (function
           && (function->module != module || strncmp(function->name, name, sizeof function->name - 1)))
        function = function->next;
    if (!function && (function = calloc(1, sizeof *function))) {
        strncpy(function->name, name, sizeof function->name - 1);
        function->module = module;
        function->next = functions;
        functions = function;
    }
    pthread_mutex_unlock(&lock);
    return function;
}

bool functions_take_time(const struct sim_node *node)
{
    return node->kernel_us || node->kernel_count;
}

static pthread_once_t seed_once = PTHREAD_ONCE_INIT;
static uint64_t seed = 1;

static void read_seed(void)
{
    const char *text = getenv("VGPU_SIM_SEED");
    seed = text ? strtoull(text, NULL, 10) : 1;
}

/* From 0 to 1, the number of these; the same sequence for the same seed. */
static double drawn(uint64_t number)
{
    pthread_once(&seed_once, read_seed);
    uint64_t mixed = seed * 0xD1342543DE82EF95ULL + (number + 1) * 0x9E3779B97F4A7C15ULL;
    mixed = (mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9ULL;
    mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EBULL;
    return (double)((mixed ^ (mixed >> 31)) >> 11) * 0x1p-53;
}

static double draw(void)
{
    return drawn(atomic_fetch_add(&draws, 1));
}

static const struct sim_kernel *kernel_of(const struct sim_node *node, CUfunction function, long gpu)
{
    for (size_t i = 0; function && i < node->kernel_count; i++) {
        const struct sim_kernel *kernel = &node->kernels[i];
        if (strcmp(kernel->name, function->name) == 0 && (kernel->gpu == ANY_GPU || kernel->gpu == gpu))
            return kernel;
    }
    return NULL;
}

uint64_t function_draw_ns(const struct sim_node *node, CUfunction function, long gpu)
{
    const struct sim_kernel *kernel = kernel_of(node, function, gpu);
    if (!kernel)
        return 1000ULL * node->kernel_us;
    if (kernel->low_ns == kernel->high_ns)
        return kernel->low_ns;
    if (kernel->high_after)
        return atomic_fetch_add(&launches[kernel - node->kernels], 1) < kernel->high_after ? kernel->low_ns
                                                                                           : kernel->high_ns;
    if (kernel->alike)
        return drawn(atomic_fetch_add(&launches[kernel - node->kernels], 1) / kernel->alike) < 0.5
            ? kernel->low_ns
            : kernel->high_ns;
    if (kernel->high_one_in)
        return draw() * kernel->high_one_in < 1 ? kernel->high_ns : kernel->low_ns;
    double low = log((double)kernel->low_ns), high = log((double)kernel->high_ns);
    return (uint64_t)exp(low + draw() * (high - low));
}

struct meeting function_meeting(const struct sim_node *node, CUfunction function, long gpu)
{
    const struct sim_kernel *kernel = kernel_of(node, function, gpu);
    if (!kernel || !kernel->meets)
        return (struct meeting){0};
    return (struct meeting){.number = (uint32_t)(kernel - node->kernels) + 1, .gpus = kernel->meets};
}

EXPORT CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name)
{
    struct cuda_call call;
    CUresult result = cuda_begin_context(&call, __func__);
    if (result == CUDA_SUCCESS && (!function || !name))
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS && !module)
        result = CUDA_ERROR_INVALID_HANDLE;
    if (result == CUDA_SUCCESS)
        result = (*function = function_named(module, name)) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    return cuda_end(&call, result);
}

EXPORT CUresult cuFuncGetModule(CUmodule *module, CUfunction function)
{
    struct cuda_call call;
    CUresult result = cuda_begin(&call, __func__);
    if (result == CUDA_SUCCESS && !module)
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS && !function)
        result = CUDA_ERROR_INVALID_HANDLE;
    if (result == CUDA_SUCCESS)
        *module = function->module;
    return cuda_end(&call, result);
}
