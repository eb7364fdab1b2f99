/* How programs come to our wrappers by cuGetProcAddress, as the CUDA runtime does.
 *
 * The driver is asked first, with the caller's own arguments: which function a name means depends on the
 * version and the flags that were asked for, and names have come to mean functions of other names. Its answer
 * is replaced only if it is, by its address, the driver's function behind one of our wrappers. An ABI newer
 * than our wrappers is passed on as it is: a wrapper of another ABI would corrupt the caller, which is worse
 * than a hole in the limit.
 */
#include "depth.h"
#include "names.h"
#include "real.h"
#include "spare.h"

#include <stdatomic.h>
#include <stddef.h>

enum { PLACE_BITS = 9, PLACES = 1 << PLACE_BITS };

/* The driver's functions by address: what it exports, and what it gives for exactly the version and flags of
 * each row, which may be another entry to the same code. */
struct by_address {
    const struct real_cuda *real;
    struct place {
        const void *function; /* NULL: free */
        enum row row;
    } places[PLACES];
};

_Static_assert(2 * CUDA_WRAPPED_END < PLACES * 3 / 4, "the index must stay sparse");

static _Atomic(struct by_address *) known;
static struct by_address spare;
static atomic_bool taken;

static struct place *place_of(struct by_address *index, const void *function)
{
    return &index->places[((uintptr_t)function * 0x9e3779b97f4a7c15) >> (64 - PLACE_BITS)];
}

static struct place *after(struct by_address *index, struct place *place)
{
    return place + 1 < index->places + PLACES ? place + 1 : index->places;
}

static void add(struct by_address *index, const void *function, enum row row)
{
    struct place *place = place_of(index, function);
    if (!function)
        return;
    for (; place->function; place = after(index, place))
        if (place->function == function && place->row == row)
            return;
    *place = (struct place){function, row};
}

/* The driver's answer to exactly the question that a row stands for. */
static const void *given(const struct real_cuda *real, enum row row)
{
    void *function = NULL;
    char name[NAMES_API_BYTES];
    CUresult result = CUDA_ERROR_NOT_FOUND;
    names_api(row, name);
    if (real->cuGetProcAddress_v2)
        result = real->cuGetProcAddress_v2(name, &function, names_since(row), names_flags(row), NULL);
    else if (real->cuGetProcAddress)
        result = real->cuGetProcAddress(name, &function, names_since(row), names_flags(row));
    return result == CUDA_SUCCESS ? function : NULL;
}

static struct by_address *make_index(const struct real_cuda *real)
{
    struct by_address *index = spare_pages(&spare, sizeof spare, &taken);
    if (!index)
        return NULL;
    index->real = real;
    for (enum row row = 0; row < CUDA_WRAPPED_END; row++) {
        if (!real_function(real, row))
            continue; /* our wrapper would have nothing to call */
        add(index, real_function(real, row), row);
        add(index, given(real, row), row);
    }
    return index;
}

static struct by_address *index_for(const struct real_cuda *real)
{
    struct by_address *now = atomic_load_explicit(&known, memory_order_acquire);
    if (now && now->real == real)
        return now;
    struct by_address *index = make_index(real);
    if (!index || atomic_compare_exchange_strong(&known, &now, index))
        return index; /* the one before may be in use: left where it is */
    spare_back(index, &spare, sizeof spare, &taken); /* another thread was faster */
    return now && now->real == real ? now : NULL;
}

/* The wrapper of the driver's function, as which the program asked for `name`; NULL when there is none. When
 * functions of several names share an address, the name decides. */
static void *wrapper_of(const struct real_cuda *real, const void *function, const char *name)
{
    struct by_address *index = index_for(real);
    enum row row = NO_ROW;
    bool several = false;
    char its[NAMES_API_BYTES];
    if (!index)
        return NULL;
    for (struct place *place = place_of(index, function); place->function; place = after(index, place)) {
        if (place->function != function)
            continue;
        if (names_is_api(place->row, name))
            return names_wrapper(place->row);
        several = several || (row != NO_ROW && !names_is_api(row, names_api(place->row, its)));
        row = place->row;
    }
    return row == NO_ROW || several ? NULL : names_wrapper(row);
}

static CUresult replaced(const struct real_cuda *real, CUresult result, const char *name, void **function)
{
    if (result != CUDA_SUCCESS || !name || !function || !*function || depth_inside())
        return result;
    void *wrapper = wrapper_of(real, *function, name);
    if (wrapper)
        *function = wrapper;
    return result;
}

EXPORT CUresult cuGetProcAddress(const char *name, void **function, int cuda_version, cuuint64_t flags)
{
    const struct real_cuda *real = real_cuda();
    if (!real || !real->cuGetProcAddress)
        return CUDA_ERROR_NOT_INITIALIZED;
    return replaced(real, real->cuGetProcAddress(name, function, cuda_version, flags), name, function);
}

EXPORT CUresult cuGetProcAddress_v2(const char *name, void **function, int cuda_version, cuuint64_t flags,
                                    CUdriverProcAddressQueryResult *status)
{
    const struct real_cuda *real = real_cuda();
    if (!real || !real->cuGetProcAddress_v2)
        return CUDA_ERROR_NOT_INITIALIZED;
    return replaced(real, real->cuGetProcAddress_v2(name, function, cuda_version, flags, status), name,
                    function);
}
