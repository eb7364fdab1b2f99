/* Simulated CUDA driver: cuGetProcAddress, which gives the newest version of a function that a program built
 * for CUDA `cuda_version` can call. Names have no suffix there: versions and per-thread streams are asked for
 * apart. What is newer than the driver, or `absent` by its configuration, does not exist.
 */
#include "../symbols.h"
#include "cuda_call.h"

#include <string.h>

static const struct version {
    const char *symbol, *name;
    int since; /* CUDA version that brought this ABI */
    unsigned flags;
    void *address;
} versions[] = {
#define X(symbol, name, since, flags) {#symbol, name, since, flags, (void *)&symbol},
    CUDA_SYMBOLS(X) CUDA_USED(X) CUDA_SIMULATED(X)
#undef X
};

static bool newer(const struct version *one, const struct version *other)
{
    return !other || one->since > other->since || (one->since == other->since && one->flags > other->flags);
}

/* The best that the program can call, or NULL; `status` says why. */
static const struct version *find(const struct sim_node *node, const char *name, int cuda_version,
                                  bool per_thread, int *status)
{
    const struct version *best = NULL;
    *status = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    for (size_t i = 0; i < sizeof versions / sizeof *versions; i++) {
        const struct version *version = &versions[i];
        if (strcmp(version->name, name) != 0 || (version->flags == PER_THREAD && !per_thread))
            continue;
        if (node && (version->since > node->cuda_version || sim_node_lacks(node, version->symbol)))
            continue;
        if (version->since <= cuda_version && newer(version, best))
            best = version;
        *status = best ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
    }
    return best;
}

static CUresult look_up(const char *caller, const char *symbol, void **function, int cuda_version,
                        uint64_t flags, int *status)
{
    CUresult result = cuda_told_to_fail(caller);
    if (result == CUDA_SUCCESS && (!symbol || !function))
        result = CUDA_ERROR_INVALID_VALUE;
    if (result != CUDA_SUCCESS)
        return result;
    const struct sim_node *node = sim_node_acquire();
    int found;
    const struct version *best =
        find(node, symbol, cuda_version, flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, &found);
    sim_node_release(node);
    *function = best ? best->address : NULL;
    if (status)
        *status = found;
    return best ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

EXPORT CUresult cuGetProcAddress_v2(const char *symbol, void **function, int cuda_version, uint64_t flags,
                                    int *status)
{
    return look_up(__func__, symbol, function, cuda_version, flags, status);
}

EXPORT CUresult cuGetProcAddress(const char *symbol, void **function, int cuda_version, uint64_t flags)
{
    return look_up(__func__, symbol, function, cuda_version, flags, NULL);
}
