/* How programs come to our wrappers when they look the driver's functions up themselves: dlsym and
 * cuGetProcAddress.
 *
 * Only a function that really lies in the driver's library is replaced; every other lookup is passed on by a
 * tail call, so that libc sees the true caller (RTLD_NEXT and RTLD_DEFAULT depend on who asks).
 */
#include "depth.h"
#include "real.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <string.h>

#define MUSTTAIL __attribute__((musttail))

void *dlsym(void *handle, const char *name);

static const struct {
    const char *symbol, *name;
    int since;
    unsigned flags;
    void *wrapper;
} cuda_wrappers[] = {
#define X(symbol, name, since, flags) {#symbol, name, since, flags, (void *)&symbol},
    CUDA_SYMBOLS(X)
#undef X
};

static const struct {
    const char *symbol;
    void *wrapper;
} nvml_wrappers[] = {
#define X(symbol) {#symbol, (void *)&symbol},
    NVML_SYMBOLS(X)
#undef X
};

enum { CUDA_WRAPPERS = sizeof cuda_wrappers / sizeof *cuda_wrappers };
enum { NVML_WRAPPERS = sizeof nvml_wrappers / sizeof *nvml_wrappers };

static void *wrapper_for(const char *name, bool *is_cuda)
{
    *is_cuda = name[0] == 'c';
    for (size_t i = 0; *is_cuda && i < CUDA_WRAPPERS; i++)
        if (strcmp(cuda_wrappers[i].symbol, name) == 0)
            return cuda_wrappers[i].wrapper;
    for (size_t i = 0; !*is_cuda && i < NVML_WRAPPERS; i++)
        if (strcmp(nvml_wrappers[i].symbol, name) == 0)
            return nvml_wrappers[i].wrapper;
    return NULL;
}

/* Path of the library that `function` lies in, if its file is called `prefix`...; otherwise NULL. */
static const char *library_of(void *function, const char *prefix)
{
    Dl_info info;
    if (!function || !dladdr(function, &info) || !info.dli_fname)
        return NULL;
    const char *slash = strrchr(info.dli_fname, '/');
    return strncmp(slash ? slash + 1 : info.dli_fname, prefix, strlen(prefix)) == 0 ? info.dli_fname : NULL;
}

static void *replaced(void *found, void *wrapper, bool is_cuda)
{
    const char *path = library_of(found, is_cuda ? "libcuda.so" : "libnvidia-ml.so");
    if (!path)
        return found;
    if (is_cuda)
        real_cuda_is(path);
    else
        real_nvml_is(path);
    return wrapper;
}

static bool could_be_ours(const char *name)
{
    return name
        && ((name[0] == 'c' && name[1] == 'u' && name[2] >= 'A' && name[2] <= 'Z')
            || strncmp(name, "nvml", 4) == 0);
}

EXPORT void *dlsym(void *handle, const char *name)
{
    dlsym_function *real = real_dlsym();
    if (!real)
        return NULL;
    bool is_cuda;
    void *wrapper = could_be_ours(name) && !depth_inside() ? wrapper_for(name, &is_cuda) : NULL;
    if (!wrapper)
        MUSTTAIL return real(handle, name);
    return replaced(real(handle, name), wrapper, is_cuda);
}

/* --- cuGetProcAddress ----------------------------------------------------------------------------------- */

static void *exported(const struct real_cuda *real, size_t i)
{
    size_t at = 0;
#define X(symbol, name, since, flags)                                                                        \
    if (at++ == i)                                                                                           \
        return *(void *const *)&real->symbol;
    CUDA_SYMBOLS(X)
#undef X
    return NULL;
}

/* Whether `function` has the ABI of wrapper i: the driver gives the same one for exactly that version and
 * those flags. (What it exports under the versioned name may be another entry to the same code.) An ABI newer
 * than our wrappers is passed on as it is: a wrapper of another ABI would corrupt the caller, which is worse
 * than a hole in the limit. */
static bool same_abi(const struct real_cuda *real, size_t i, void *function)
{
    void *same = NULL;
    if (exported(real, i) == function)
        return true;
    if (real->cuGetProcAddress_v2)
        real->cuGetProcAddress_v2(cuda_wrappers[i].name, &same, cuda_wrappers[i].since,
                                  cuda_wrappers[i].flags, NULL);
    else if (real->cuGetProcAddress)
        real->cuGetProcAddress(cuda_wrappers[i].name, &same, cuda_wrappers[i].since, cuda_wrappers[i].flags);
    return same == function;
}

static void replace(const struct real_cuda *real, const char *name, void **function)
{
    for (size_t i = 0; name && function && *function && i < CUDA_WRAPPERS; i++) {
        if (strcmp(cuda_wrappers[i].name, name) == 0 && same_abi(real, i, *function)) {
            *function = cuda_wrappers[i].wrapper;
            return;
        }
    }
}

EXPORT CUresult cuGetProcAddress(const char *symbol, void **function, int cuda_version, uint64_t flags)
{
    const struct real_cuda *real = real_cuda();
    if (!real || !real->cuGetProcAddress)
        return CUDA_ERROR_NOT_INITIALIZED;
    CUresult result = real->cuGetProcAddress(symbol, function, cuda_version, flags);
    if (result == CUDA_SUCCESS && !depth_inside())
        replace(real, symbol, function);
    return result;
}

EXPORT CUresult cuGetProcAddress_v2(const char *symbol, void **function, int cuda_version, uint64_t flags,
                                    int *status)
{
    const struct real_cuda *real = real_cuda();
    if (!real || !real->cuGetProcAddress_v2)
        return CUDA_ERROR_NOT_INITIALIZED;
    CUresult result = real->cuGetProcAddress_v2(symbol, function, cuda_version, flags, status);
    if (result == CUDA_SUCCESS && !depth_inside())
        replace(real, symbol, function);
    return result;
}
