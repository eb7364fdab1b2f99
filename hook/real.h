/* The driver's own functions, typed by their prototypes. Found in the library that the program itself uses.
 *
 * Never takes a lock while it loads: the loader holds one of its own, and a program may look symbols up from
 * inside it. Thread safe. What is found stays valid for the life of the process.
 */
#ifndef VGPU_REAL_H
#define VGPU_REAL_H

#include "cuda_abi.h"
#include "nvml_abi.h"
#include "symbols.h"

struct real_cuda {
#define X(symbol, name, since, flags) __typeof__(&symbol) symbol;
    CUDA_SYMBOLS(X) CUDA_USED(X)
#undef X
};

struct real_nvml {
#define X(symbol) __typeof__(&symbol) symbol;
    NVML_SYMBOLS(X) NVML_USED(X)
#undef X
};

/* NULL when there is no such library. Members that this driver lacks are NULL. */
const struct real_cuda *real_cuda(void);
const struct real_nvml *real_nvml(void);

/* The program uses the driver library with this path: ours are the functions of that one, if we have none
 * yet. */
void real_cuda_is(const char *path);
void real_nvml_is(const char *path);

/* libc's dlsym, past ours. */
typedef void *dlsym_function(void *handle, const char *name);
dlsym_function *real_dlsym(void);

#endif
