#include "real.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>

static _Atomic(dlsym_function *) libc_dlsym;
static _Atomic(struct real_cuda *) cuda;
static _Atomic(struct real_nvml *) nvml;

dlsym_function *real_dlsym(void)
{
    /* The first version of dlsym in this architecture's libc, and the one of libc 2.34, which took over
     * libdl. */
    static const char *const versions[] = {"GLIBC_2.2.5", "GLIBC_2.17", "GLIBC_2.34"};
    dlsym_function *found = atomic_load_explicit(&libc_dlsym, memory_order_relaxed);
    for (size_t i = 0; !found && i < sizeof versions / sizeof *versions; i++)
        *(void **)&found = dlvsym(RTLD_NEXT, "dlsym", versions[i]);
    atomic_store_explicit(&libc_dlsym, found, memory_order_relaxed);
    return found;
}

static void *library(const char *name)
{
    void *handle = dlopen(name, RTLD_LAZY | RTLD_NOLOAD);
    return handle ? handle : dlopen(name, RTLD_LAZY);
}

/* What the library does not export it may still give by cuGetProcAddress. */
static void *cuda_function(void *handle, const char *symbol, const char *name, int since, unsigned flags)
{
    void *function = real_dlsym()(handle, symbol);
    __typeof__(&cuGetProcAddress) lookup;
    *(void **)&lookup = function ? NULL : real_dlsym()(handle, "cuGetProcAddress");
    if (lookup && lookup(name, &function, since, flags) != CUDA_SUCCESS)
        function = NULL;
    return function;
}

static struct real_cuda *load_cuda(const char *path)
{
    void *handle = real_dlsym() ? library(path) : NULL;
    struct real_cuda *loaded = handle ? calloc(1, sizeof *loaded) : NULL;
    if (!loaded)
        return NULL;
#define X(symbol, name, since, flags)                                                                        \
    *(void **)&loaded->symbol = cuda_function(handle, #symbol, name, since, flags);
    CUDA_SYMBOLS(X)
    CUDA_USED(X)
#undef X
    return loaded;
}

static struct real_nvml *load_nvml(const char *path)
{
    void *handle = real_dlsym() ? library(path) : NULL;
    struct real_nvml *loaded = handle ? calloc(1, sizeof *loaded) : NULL;
    if (!loaded)
        return NULL;
#define X(symbol) *(void **)&loaded->symbol = real_dlsym()(handle, #symbol);
    NVML_SYMBOLS(X)
    NVML_USED(X)
#undef X
    return loaded;
}

void real_cuda_is(const char *path)
{
    struct real_cuda *none = NULL, *loaded = atomic_load(&cuda) ? NULL : load_cuda(path);
    if (loaded && !atomic_compare_exchange_strong(&cuda, &none, loaded))
        free(loaded); /* another thread was faster */
}

void real_nvml_is(const char *path)
{
    struct real_nvml *none = NULL, *loaded = atomic_load(&nvml) ? NULL : load_nvml(path);
    if (loaded && !atomic_compare_exchange_strong(&nvml, &none, loaded))
        free(loaded);
}

const struct real_cuda *real_cuda(void)
{
    if (!atomic_load(&cuda))
        real_cuda_is("libcuda.so.1"); /* a program that links against it never looked anything up */
    return atomic_load(&cuda);
}

const struct real_nvml *real_nvml(void)
{
    if (!atomic_load(&nvml))
        real_nvml_is("libnvidia-ml.so.1");
    return atomic_load(&nvml);
}
