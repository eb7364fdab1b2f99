#include "real.h"
#include "dlopen.h"
#include "late.h"
#include "loaded.h"
#include "names.h"
#include "same_text.h"
#include "spare.h"

#include <dlfcn.h>
#include <stddef.h>
#include <string.h>

_Atomic(dlsym_function *) real_dlsym_known;
_Atomic(const void *) real_known[DRIVERS];
extern inline const struct real_cuda *real_cuda(void);
extern inline const struct real_nvml *real_nvml(void);
atomic_bool real_cuda_settled;

static _Atomic(dlvsym_function *) dlvsym_known;

struct functions {
    struct extent extent;
    void *of_row[]; /* from the driver's first one on */
};

_Static_assert(offsetof(struct real_cuda, cuInit) == offsetof(struct functions, of_row)
                   && sizeof(struct real_cuda) == sizeof(struct functions) + CUDA_END * sizeof(void *)
                   && sizeof(struct real_nvml)
                       == sizeof(struct functions) + (ROWS - CUDA_END) * sizeof(void *),
               "functions by row");

/* Names, by enum driver. */
static const struct {
    char library[24], first[16];
    enum row begin, end;
} drivers[DRIVERS] = {
    {"libcuda.so.1", "cuInit", 0, CUDA_END},
    {"libnvidia-ml.so.1", "nvmlInit_v2", CUDA_END, ROWS},
};

dlsym_function *real_dlsym_search(void)
{
    dlsym_function *found;
    *(void **)&found = loaded_libc("dlsym");
    atomic_store_explicit(&real_dlsym_known, found, memory_order_relaxed);
    return found;
}

dlvsym_function *real_dlvsym(void)
{
    dlvsym_function *found = atomic_load_explicit(&dlvsym_known, memory_order_relaxed);
    if (!found)
        *(void **)&found = loaded_libc("dlvsym");
    atomic_store_explicit(&dlvsym_known, found, memory_order_relaxed);
    return found;
}

static bool within(const struct extent *extent, const void *address)
{
    return (uintptr_t)address >= extent->low && (uintptr_t)address < extent->high;
}

/* --- one library's functions ---------------------------------------------------------------------------- */

static union {
    struct real_cuda cuda;
    struct real_nvml nvml;
} spares[DRIVERS];
static atomic_bool taken[DRIVERS];

static void *function_of(void *handle, enum row row)
{
    void *function = real_dlsym()(handle, names_symbol(row));
    char name[NAMES_API_BYTES];
    __typeof__(&cuGetProcAddress) lookup;
    *(void **)&lookup = function || row >= CUDA_END ? NULL : real_dlsym()(handle, "cuGetProcAddress");
    /* What the driver does not export it may still give by cuGetProcAddress. */
    if (lookup && lookup(names_api(row, name), &function, names_since(row), names_flags(row)) != CUDA_SUCCESS)
        function = NULL;
    return function;
}

/* False when none of them lies in the library: then the handle is that of another copy. */
static bool fill(struct functions *functions, enum driver driver, void *handle)
{
    bool own = false;
    for (enum row row = drivers[driver].begin; row < drivers[driver].end; row++) {
        void *function = function_of(handle, row);
        functions->of_row[row - drivers[driver].begin] = function;
        own = own || within(&functions->extent, function);
    }
    dlerror(); /* what we tried is not the program's business */
    return own;
}

/* Make this library the driver, unless another thread is faster. */
static const void *adopt(enum driver driver, const struct loaded *library)
{
    const void *now = atomic_load(&real_known[driver]);
    void *handle =
        dlopen_by_libc(library->path, RTLD_LAZY | RTLD_NOLOAD); /* as it is loaded, never a copy of it */
    struct functions *functions =
        handle ? spare_pages(&spares[driver], sizeof *spares, &taken[driver]) : NULL;
    if (!functions)
        return now;
    late_find_all();
    functions->extent = (struct extent){library->low, library->high};
    if (fill(functions, driver, handle)
        && atomic_compare_exchange_strong(&real_known[driver], &now, functions))
        return functions;
    spare_back(functions, &spares[driver], sizeof *spares, &taken[driver]);
    return now;
}

/* --- which library -------------------------------------------------------------------------------------- */

/* Where the program has opened libcuda by its path, the loader may not know of the directory. */
static void *open_beside_cuda(const char *library)
{
    const struct functions *cuda = atomic_load(&real_known[DRIVER_CUDA]);
    struct loaded at;
    char path[512];
    const char *slash = cuda && loaded_at((const void *)cuda->extent.low, &at) ? strrchr(at.path, '/') : NULL;
    size_t directory = slash ? (size_t)(slash + 1 - at.path) : 0, name = strlen(library) + 1;
    if (!slash || directory + name > sizeof path)
        return NULL;
    memcpy(path, at.path, directory);
    memcpy(path + directory, library, name);
    return dlopen_by_libc(path, RTLD_LAZY);
}

/* What a library, by the name that it is loaded by, defines, or else what it was opened with. */
static __attribute__((noinline)) void *seen_from(const char *library, const char *name)
{
    void *handle = dlopen_by_libc(library, RTLD_LAZY | RTLD_NOLOAD);
    void *found = handle ? real_dlsym()(handle, name) : NULL;
    if (handle)
        dlclose(handle);
    return found;
}

/* What a call of the driver's first function would reach without us; NULL when it would reach nothing. */
static const void *without_us(enum driver driver, bool load)
{
    const char *library = drivers[driver].library, *first = drivers[driver].first;
    dlsym_function *lookup = real_dlsym();
    if (!lookup)
        return NULL;
    void *found = lookup(RTLD_NEXT, first); /* what the program is linked to may have any name */
    struct loaded behind;
    if (found && loaded_at(found, &behind) && !behind.is_code)
        found = NULL; /* what a library keeps it in, which is to be asked for elsewhere */
    if (found || !load) {
        void *seen = seen_from(library, first);
        found = seen ? seen : found;
    } else { /* at once: to ask first whether it is loaded would search for its file twice */
        void *handle = dlopen_by_libc(library, RTLD_LAZY);
        handle = handle ? handle : open_beside_cuda(library);
        found = handle ? lookup(handle, first) : NULL;
    }
    dlerror();
    return found;
}

const void *real_search(enum driver driver, bool load)
{
    struct loaded library;
    const void *now = atomic_load(&real_known[driver]);
    const void *function = now ? NULL : without_us(driver, load);
    return function && loaded_at(function, &library) ? adopt(driver, &library) : now;
}

void *real_function(const void *real, int row)
{
    const struct functions *functions = real;
    return functions->of_row[row < CUDA_END ? row : row - CUDA_END];
}

/* libcuda.so, libcuda.so.1, libcuda.so.570.86.15 ... Without libc: asked at each dlopen. */
static bool is_form(const char *file, enum driver driver)
{
    const char *name = drivers[driver].library;
    while (*name && *file == *name) {
        file++;
        name++;
    }
    return !*name || same_text(name, ".1") || same_text(name, "1");
}

static const char *file_of(const char *path)
{
    const char *file = path;
    for (; *path; path++)
        if (*path == '/')
            file = path + 1;
    return file;
}

static bool is_file(const struct loaded *library, enum driver driver)
{
    return is_form(file_of(library->path), driver);
}

bool real_is_drivers_file(const char *path)
{
    const char *file = file_of(path);
    return is_form(file, DRIVER_CUDA) || is_form(file, DRIVER_NVML);
}

/* Or that is the name that it was built with: a program may open it by a path of any form. */
static bool has_name(const struct loaded *library, enum driver driver)
{
    return is_file(library, driver) || (library->soname && is_form(library->soname, driver));
}

bool real_is_drivers(int row, const void *function)
{
    struct loaded library;
    return loaded_at(function, &library) && has_name(&library, row < CUDA_END ? DRIVER_CUDA : DRIVER_NVML);
}

/* Whether it lies in a library of the driver's name that we have not met, and that has become the driver. */
static bool newly_gave(enum driver driver, const void *function, const void *caller)
{
    struct loaded library, asking;
    bool settled = driver == DRIVER_NVML || atomic_load(&real_cuda_settled);
    if ((settled && atomic_load(&real_known[driver])) || !loaded_at(function, &library)
        || !has_name(&library, driver))
        return false;
    if (loaded_at(caller, &asking) && is_file(&asking, driver))
        return false; /* a driver that is a door to another one, as on WSL */
    const struct functions *functions = adopt(driver, &library);
    return functions && within(&functions->extent, function);
}

bool real_gave(enum driver driver, const void *function, const void *caller)
{
    const struct functions *real = atomic_load_explicit(&real_known[driver], memory_order_acquire);
    if (real && within(&real->extent, function))
        return !within(&real->extent, caller);
    return newly_gave(driver, function, caller);
}

void real_cuda_settle(bool asks_nvml)
{
    const struct functions *so_far = atomic_load(&real_known[DRIVER_CUDA]);
    if (atomic_load(&real_cuda_settled))
        return;
    /* What was called may be stubs in a library of another name, which have loaded the driver now. */
    real_gave(DRIVER_CUDA, seen_from(drivers[DRIVER_CUDA].library, drivers[DRIVER_CUDA].first),
              (const void *)so_far->extent.low);
    dlerror();
    if (asks_nvml)
        real_search(DRIVER_NVML, true);
    atomic_store(&real_cuda_settled, true);
}

void *real_opened_with(enum driver driver, const void *caller, const char *name)
{
    struct loaded asking;
    if (!loaded_at(caller, &asking) || is_file(&asking, driver))
        return NULL; /* a driver that is a door to another one must not come back to us */
    void *found = seen_from(asking.path, name);
    /* Its own, if it wraps the function: what is behind that can only be guessed. So can what it has from who
     * opened it, if that is another library. There the limit goes before what would be found without us. */
    if ((uintptr_t)found - asking.low < asking.high - asking.low || !found)
        found = seen_from(drivers[driver].library, name);
    return found;
}
