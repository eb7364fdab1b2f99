/* The driver's own functions, typed by their prototypes. Found in the library that the program itself uses.
 *
 * Never takes a lock of ours: the loader holds one of its own, and a program may look symbols up from inside
 * it. Thread safe. What is found stays valid for the life of the process: the library cannot be unloaded any
 * more.
 */
#ifndef VGPU_REAL_H
#define VGPU_REAL_H

#include "cuda_abi.h"
#include "nvml_abi.h"
#include "symbols.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* Where a library lies, from its first to behind its last byte. */
struct extent {
    uintptr_t low, high;
};

/* Functions in the order of the table (names.h). */
struct real_cuda {
    struct extent extent;
#define X(symbol, name, since, flags) __typeof__(&symbol) symbol;
    CUDA_SYMBOLS(X) CUDA_USED(X)
#undef X
};

struct real_nvml {
    struct extent extent;
#define X(symbol) __typeof__(&symbol) symbol;
    NVML_SYMBOLS(X) NVML_USED(X)
#undef X
};

enum driver { DRIVER_CUDA, DRIVER_NVML, DRIVERS };

extern _Atomic(const void *) real_known[DRIVERS] __attribute__((visibility("hidden")));
extern atomic_bool real_cuda_settled __attribute__((visibility("hidden")));

/* The functions of the library that the program has loaded, or else, where `load`, by loading it. */
const void *real_search(enum driver driver, bool load);

/* NULL when there is no such library. Members that this driver lacks are NULL. */
inline const struct real_cuda *real_cuda(void)
{
    const struct real_cuda *real = atomic_load_explicit(&real_known[DRIVER_CUDA], memory_order_acquire);
    return __builtin_expect(real != NULL, 1) ? real : real_search(DRIVER_CUDA, true);
}

inline const struct real_nvml *real_nvml(void)
{
    const struct real_nvml *real = atomic_load_explicit(&real_known[DRIVER_NVML], memory_order_acquire);
    return __builtin_expect(real != NULL, 1) ? real : real_search(DRIVER_NVML, true);
}

/* The same for questions of our own. Not looked for any more once CUDA has settled: NULL until the program
 * comes to use one. */
static inline const struct real_nvml *real_nvml_of_ours(void)
{
    const struct real_nvml *real = atomic_load_explicit(&real_known[DRIVER_NVML], memory_order_acquire);
    return real || atomic_load_explicit(&real_cuda_settled, memory_order_relaxed)
        ? real
        : real_search(DRIVER_NVML, true);
}

/* The function of a row (names.h) in what real_search gave; NULL when the driver lacks it. */
void *real_function(const void *real, int row);

/* CUDA has started: from now on it has one driver in this process, whatever else is loaded. `asks_nvml`: and
 * one NVML that we ask, if there is any. Found here, where the driver itself loads libraries: later the
 * thread that needs it may be one that a library's constructor waits for, with the loader's lock held. */
void real_cuda_settle(bool asks_nvml);

/* Whether `function` lies in the driver's library, and the one who asks, `caller`, does not. A library of the
 * driver's name that the program has come to use becomes the driver, as long as CUDA has not started with
 * another. */
bool real_gave(enum driver driver, const void *function, const void *caller);

/* Whether a file is one by its name. */
bool real_is_drivers_file(const char *path);

/* Whether `function` lies in a library of the name of the driver that has this row, whoever asks. */
bool real_is_drivers(int row, const void *function);

/* What RTLD_NEXT finds for `caller` of what was loaded before it. Where nobody behind it in the list defines
 * the name, libc still looks through what the caller's library was opened with, and some of that may have
 * been there already: the driver above all. NULL: nothing, or the caller has a driver's name. */
void *real_opened_with(enum driver driver, const void *caller, const char *name);

/* libc's dlsym and dlvsym, past ours and everybody else's; NULL where there is none. */
typedef void *dlsym_function(void *handle, const char *name);
typedef void *dlvsym_function(void *handle, const char *name, const char *version);
extern _Atomic(dlsym_function *) real_dlsym_known __attribute__((visibility("hidden")));
dlsym_function *real_dlsym_search(void);
dlvsym_function *real_dlvsym(void);

/* The function of ours that takes the place of one of these by its name, or NULL (dlsym.c). */
void *dlsym_of_ours(const char *name);

static inline dlsym_function *real_dlsym(void)
{
    dlsym_function *found = atomic_load_explicit(&real_dlsym_known, memory_order_relaxed);
    return __builtin_expect(found != NULL, 1) ? found : real_dlsym_search();
}

#endif
