/* The table of symbols by name and by row. A row is a symbol's place in symbols.h: the intercepted ones of
 * CUDA, those of CUDA that are only called, and the same for NVML.
 *
 * Costs nothing until it is asked: no relocation, no constructor. The index over the names is made at the
 * first question; threads that race for it write the same. Takes no lock, allocates nothing.
 */
#ifndef VGPU_NAMES_H
#define VGPU_NAMES_H

#include "symbols.h"

#include <stdbool.h>

enum row {
#define X(symbol, name, since, flags) ROW_##symbol,
    CUDA_SYMBOLS(X) CUDA_WRAPPED_END,
    CUDA_BEFORE_USED = CUDA_WRAPPED_END - 1,
    CUDA_USED(X) CUDA_END,
#undef X
    NVML_BEFORE_WRAPPED = CUDA_END - 1,
#define X(symbol) ROW_##symbol,
    NVML_SYMBOLS(X) NVML_WRAPPED_END,
    NVML_BEFORE_USED = NVML_WRAPPED_END - 1,
    NVML_USED(X) ROWS,
#undef X
    NO_ROW = -1,
};

/* Whether a name has the form of the driver's ones: the rest of the world is told apart by two or three
 * comparisons. */
static inline bool names_form(const char *name)
{
    if (name[0] != 'c' && name[0] != 'n')
        return false;
    const char *rest = name[0] == 'c'                        ? (name[1] == 'u' ? name + 2 : "")
        : name[1] == 'v' && name[2] == 'm' && name[3] == 'l' ? name + 4
                                                             : "";
    return *rest >= 'A' && *rest <= 'Z';
}

/* The intercepted symbol of this name; NO_ROW for any other. */
enum row names_row(const char *name);

const char *names_symbol(enum row row);

enum { NAMES_API_BYTES = 40 };

/* Fills in what the symbol is called in cuGetProcAddress. For rows of CUDA only, like the next two. */
const char *names_api(enum row row, char name[NAMES_API_BYTES]);

/* Whether it is called so. */
bool names_is_api(enum row row, const char *name);
int names_since(enum row row);
unsigned names_flags(enum row row);

/* Our function for an intercepted row; NULL for another. */
void *names_wrapper(enum row row);

#endif
