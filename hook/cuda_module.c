/* Code that is loaded, and what it costs: measured, and charged when it is loaded. What the driver loads only
 * when a kernel first runs is seen later (guesses_reconcile). */
#include "contexts.h"
#include "guesses.h"
#include "looks.h"
#include "loose.h"
#include "overhead.h"
#include "wrap.h"

#include <pthread.h>

struct loading {
    struct overhead overhead;
    CUcontext context;
    CUdevice device;
    uint64_t asked_bytes; /* known to be what it takes, as it was loaded before; 0: it was not */
};

#define AGAIN ((CUresult) - 1)

/* Without a context nothing is loaded to a device: the driver is asked as it is. */
static CUresult begin(struct loading *loading, const char *function)
{
    const struct real_cuda *real = real_cuda();
    loading->overhead = (struct overhead){.place = -1};
    if (!charging() || !real->cuCtxGetDevice || !real->cuCtxGetCurrent
        || real->cuCtxGetDevice(&loading->device) != CUDA_SUCCESS
        || real->cuCtxGetCurrent(&loading->context) != CUDA_SUCCESS)
        return CUDA_SUCCESS;
    loading->context = context_whole(loading->context);
    return overhead_begin(&loading->overhead, loading->device, OVERHEAD_MODULE, loading->asked_bytes,
                          function);
}

/* What was loaded is charged; or unloaded if it does not fit. Where it seems to have taken far more than code
 * does, unloading it shows whether that was its own, and it is loaded again. */
static CUresult loaded(struct loading *loading, CUresult result, CUmodule *module, CUlibrary *library)
{
    const struct real_cuda *real = real_cuda();
    struct cost cost;
    bool made = result == CUDA_SUCCESS && (module || library);
    bool fits = !made || overhead_made(&loading->overhead, &cost);
    if ((!fits || loading->overhead.beyond_bytes)
        && (library ? real->cuLibraryUnload && CALL(cuLibraryUnload, *library) == CUDA_SUCCESS
                    : real->cuModuleUnload && CALL(cuModuleUnload, *module) == CUDA_SUCCESS)) {
        if (library)
            *library = NULL;
        else
            *module = NULL;
        made = false;
        result = CUDA_ERROR_OUT_OF_MEMORY;
        if (loading->overhead.beyond_bytes) {
            loading->asked_bytes = overhead_given_back(&loading->overhead);
            result = AGAIN;
        }
    }
    if (made)
        module_loaded(library ? (void *)*library : (void *)*module, loading->context, loading->device, cost);
    else
        overhead_failed(&loading->overhead);
    return result;
}

/* The shape of a wrapper that loads code: a module or a library; the other is NULL. */
#define LOAD(symbol, module, library, ...)                                                                   \
    const struct real_cuda *real = real_cuda();                                                              \
    struct loading loading;                                                                                  \
    CUresult result;                                                                                         \
    if (!real || !real->symbol)                                                                              \
        return CUDA_ERROR_NOT_INITIALIZED;                                                                   \
    loading.asked_bytes = 0;                                                                                 \
    do {                                                                                                     \
        result = begin(&loading, #symbol);                                                                   \
        if (result == CUDA_SUCCESS)                                                                          \
            result = loaded(&loading, CALL(symbol, __VA_ARGS__), module, library);                           \
    } while (result == AGAIN);                                                                               \
    return result

EXPORT CUresult cuModuleLoad(CUmodule *module, const char *path)
{
    LOAD(cuModuleLoad, module, NULL, module, path);
}

EXPORT CUresult cuModuleLoadData(CUmodule *module, const void *image)
{
    LOAD(cuModuleLoadData, module, NULL, module, image);
}

EXPORT CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned count, CUjit_option *options,
                                   void **values)
{
    LOAD(cuModuleLoadDataEx, module, NULL, module, image, count, options, values);
}

EXPORT CUresult cuModuleLoadFatBinary(CUmodule *module, const void *image)
{
    LOAD(cuModuleLoadFatBinary, module, NULL, module, image);
}

EXPORT CUresult cuLibraryLoadData(CUlibrary *library, const void *image, CUjit_option *jit_options,
                                  void **jit_values, unsigned jit_count, CUlibraryOption *options,
                                  void **values, unsigned count)
{
    LOAD(cuLibraryLoadData, NULL, library, library, image, jit_options, jit_values, jit_count, options,
         values, count);
}

EXPORT CUresult cuLibraryLoadFromFile(CUlibrary *library, const char *path, CUjit_option *jit_options,
                                      void **jit_values, unsigned jit_count, CUlibraryOption *options,
                                      void **values, unsigned count)
{
    LOAD(cuLibraryLoadFromFile, NULL, library, library, path, jit_options, jit_values, jit_count, options,
         values, count);
}

#define UNLOAD(symbol, handle)                                                                               \
    const struct real_cuda *real = real_cuda();                                                              \
    if (!real || !real->symbol)                                                                              \
        return CUDA_ERROR_NOT_INITIALIZED;                                                                   \
    if (!charging())                                                                                         \
        return real->symbol(handle);                                                                         \
    struct module *account = module_unloading(handle);                                                       \
    CUresult result = CALL(symbol, handle);                                                                  \
    return module_unloaded(account, result)

EXPORT CUresult cuModuleUnload(CUmodule module)
{
    UNLOAD(cuModuleUnload, module);
}

/* --- variables of code in managed memory ---------------------------------------------------------------- */

static atomic_bool variables; /* there is one, or was: until then, who unloads a library looks for none */
/* Of who charges one, so that two who ask at once do not charge it twice. Taken only after the driver has
 * told of one, which it does in no child of fork: none finds it taken. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* `at`, in `library`: charged if it is not yet. */
static CUresult charge_variable(CUdeviceptr at, size_t size, CUlibrary library, const char *function)
{
    CUresult result = CUDA_SUCCESS;
    struct block *block = block_take(BLOCK_LIBRARY, at, 0);
    if (block) {
        block_add(block, at, 0);
        return result;
    }
    result = wrap_reserve(&block, BLOCK_LIBRARY, size, function);
    if (block) {
        block_set_context(block, library);
        loose_store(&variables, true);
    }
    wrap_managed(block);
    return wrap_settle(block, result, at);
}

/* Loading the code shows nothing of it, and NVML as little as of other managed memory. So it is charged in
 * full where its address is asked for, once, until its library is unloaded. */
SELDOM EXPORT CUresult cuLibraryGetManaged(CUdeviceptr *address, size_t *bytes, CUlibrary library,
                                           const char *name)
{
    const struct real_cuda *real = real_cuda();
    CUdeviceptr at = 0;
    size_t size = 0;
    if (!real || !real->cuLibraryGetManaged)
        return CUDA_ERROR_NOT_INITIALIZED;
    if (!charging() || (!address && !bytes))
        return real->cuLibraryGetManaged(address, bytes, library, name);
    CUresult result = CALL(cuLibraryGetManaged, &at, &size, library, name);
    if (result != CUDA_SUCCESS)
        return result;
    int cancels;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancels); /* nobody ends with the lock */
    pthread_mutex_lock(&lock);
    result = charge_variable(at, size, library, __func__);
    pthread_mutex_unlock(&lock);
    pthread_setcancelstate(cancels, &cancels);
    if (result != CUDA_SUCCESS)
        return result;
    if (address)
        *address = at;
    if (bytes)
        *bytes = size;
    return CUDA_SUCCESS;
}

static CUresult unload_library(CUlibrary library)
{
    UNLOAD(cuLibraryUnload, library);
}

EXPORT CUresult cuLibraryUnload(CUlibrary library)
{
    struct block *of_library = loose_load(&variables) && !depth_inside() ? blocks_take_of(library) : NULL;
    looks_calls(true);
    CUresult result = unload_library(library);
    wrap_context_ended(of_library, result == CUDA_SUCCESS);
    looks_calls(false);
    return result;
}
