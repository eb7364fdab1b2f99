#include "names.h"
#include "cuda_abi.h"
#include "nvml_abi.h"
#include "same_text.h"

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { PLACES = 1024, FREE = 0 };

/* All names in one piece, found by offset: an array of pointers would have to be relocated at every exec. */
static const struct {
#define X(symbol, name, since, flags) char symbol[sizeof #symbol];
    CUDA_SYMBOLS(X)
    CUDA_USED(X)
#undef X
#define X(symbol) char symbol[sizeof #symbol];
    NVML_SYMBOLS(X) NVML_USED(X)
#undef X
} symbols = {
#define X(symbol, name, since, flags) #symbol,
    CUDA_SYMBOLS(X) CUDA_USED(X)
#undef X
#define X(symbol) #symbol,
        NVML_SYMBOLS(X) NVML_USED(X)
#undef X
};

static const uint16_t symbol_at[] = {
#define X(symbol, name, since, flags) offsetof(__typeof__(symbols), symbol),
    CUDA_SYMBOLS(X) CUDA_USED(X)
#undef X
#define X(symbol) offsetof(__typeof__(symbols), symbol),
        NVML_SYMBOLS(X) NVML_USED(X)
#undef X
};

/* A name in cuGetProcAddress is what its symbol begins with, so only its length is kept. */
static const struct {
    uint16_t since;
    uint8_t name_length, flags;
} apis[] = {
#define X(symbol, name, since, flags) {since, sizeof name - 1, flags},
    CUDA_SYMBOLS(X) CUDA_USED(X)
#undef X
};

#define X(symbol, name, since, flags)                                                                        \
    _Static_assert(sizeof name <= NAMES_API_BYTES && sizeof name <= sizeof #symbol,                          \
                   "it begins with the name");
CUDA_SYMBOLS(X)
CUDA_USED(X)
#undef X

_Static_assert(sizeof symbol_at / sizeof *symbol_at == ROWS, "one row for each symbol");
_Static_assert(sizeof apis / sizeof *apis == CUDA_END, "one row for each symbol of CUDA");
_Static_assert(sizeof symbols <= UINT16_MAX, "offsets have 16 bits");
_Static_assert(ROWS < PLACES / 2, "the index must stay sparse");

static _Atomic uint16_t index_of[PLACES]; /* row + 1 */
static atomic_bool indexed;

const char *names_symbol(enum row row)
{
    return (const char *)&symbols + symbol_at[row];
}

const char *names_api(enum row row, char name[NAMES_API_BYTES])
{
    memcpy(name, names_symbol(row), apis[row].name_length);
    name[apis[row].name_length] = '\0';
    return name;
}

bool names_is_api(enum row row, const char *name)
{
    const char *symbol = names_symbol(row), *end = symbol + apis[row].name_length;
    while (symbol < end && *symbol == *name)
        symbol++, name++;
    return symbol == end && !*name;
}

int names_since(enum row row)
{
    return apis[row].since;
}

unsigned names_flags(enum row row)
{
    return apis[row].flags;
}

static unsigned hash_of(const char *name)
{
    uint32_t hash = 0;
    for (; *name; name++)
        hash = hash * 33 + (unsigned char)*name;
    return hash ^ hash >> 10;
}

/* Racing threads put every row in the same place: each goes through the rows in the same order, and finds all
 * earlier ones in place. */
static void index_row(enum row row)
{
    unsigned place = hash_of(names_symbol(row)) % PLACES;
    for (;; place = (place + 1) % PLACES) {
        unsigned there = atomic_load_explicit(&index_of[place], memory_order_relaxed);
        if (there == FREE)
            atomic_store_explicit(&index_of[place], (uint16_t)(row + 1), memory_order_relaxed);
        if (there == FREE || there == (unsigned)row + 1)
            return;
    }
}

static void index_all(void)
{
    for (enum row row = 0; row < CUDA_WRAPPED_END; row++)
        index_row(row);
    for (enum row row = CUDA_END; row < NVML_WRAPPED_END; row++)
        index_row(row);
    atomic_store_explicit(&indexed, true, memory_order_release);
}

enum row names_row(const char *name)
{
    if (!atomic_load_explicit(&indexed, memory_order_acquire))
        index_all();
    for (unsigned place = hash_of(name) % PLACES;; place = (place + 1) % PLACES) {
        unsigned there = atomic_load_explicit(&index_of[place], memory_order_relaxed);
        if (there == FREE)
            return NO_ROW;
        if (same_text(names_symbol((enum row)(there - 1)), name))
            return (enum row)(there - 1);
    }
}

/* Our functions as distances from this table, by row, and 0 for rows without one: C can say addresses only,
 * and those would have to be relocated. */
// clang-format off
__asm__(".pushsection .rodata.names_wrapper_at,\"a\"\n.balign 4\nnames_wrapper_at:\n"
        ".macro wrapper symbol\n.long \\symbol - names_wrapper_at\n.endm\n");
#define X(symbol, name, since, flags) "wrapper " #symbol "\n"
__asm__(CUDA_SYMBOLS(X));
#undef X
#define X(symbol, name, since, flags) ".long 0\n"
__asm__(CUDA_USED(X));
#undef X
#define X(symbol) "wrapper " #symbol "\n"
__asm__(NVML_SYMBOLS(X));
#undef X
__asm__(".popsection\n");
// clang-format on

extern const char names_wrapper_at[] __attribute__((visibility("hidden")));

void *names_wrapper(enum row row)
{
    int32_t distance;
    if (row < 0 || row >= NVML_WRAPPED_END)
        return NULL;
    memcpy(&distance, names_wrapper_at + (size_t)row * sizeof distance, sizeof distance);
    return distance ? (void *)(uintptr_t)(names_wrapper_at + distance) : NULL;
}
