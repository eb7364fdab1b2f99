/* How programs come to our wrappers when they look the driver's functions up: dlsym and dlvsym.
 *
 * Only a function that really lies in the driver's library is replaced, and only for who is not the driver
 * itself; every other lookup is passed on by a tail call, so that libc sees the true caller (RTLD_NEXT and
 * RTLD_DEFAULT depend on who asks) and leaves its own word in dlerror. libc's functions are called, whoever
 * else has taken their names: another library that does so may be calling us.
 */
#include "depth.h"
#include "dlopen.h"
#include "loaded.h"
#include "names.h"
#include "real.h"
#include "same_text.h"

#include <dlfcn.h>
#include <stdbool.h>

#define MUSTTAIL __attribute__((musttail))

void *dlsym(void *handle, const char *name);
void *dlvsym(void *handle, const char *name, const char *version);

enum answer { LIBCS, OURS, NOBODYS };

static enum driver driver_of(enum row row)
{
    return row < CUDA_END ? DRIVER_CUDA : DRIVER_NVML;
}

/* Whether there is a driver in this process, and one with this function: without us, calls that find our
 * export would find that. */
static enum answer exported(enum row row)
{
    enum driver driver = driver_of(row);
    const void *real = atomic_load_explicit(&real_known[driver], memory_order_acquire);
    if (!real)
        real = real_search(driver, false);
    return real && real_function(real, row) ? OURS : NOBODYS;
}

static enum answer answer_to(enum row row, const void *found, const void *caller)
{
    if (!found)
        return LIBCS;
    if (found == names_wrapper(row))
        return exported(row);
    return real_gave(driver_of(row), found, caller) ? OURS : LIBCS;
}

/* What RTLD_NEXT finds for the caller. */
static const void *next_of(enum row row, const void *caller, const char *name)
{
    const void *found = loaded_next_definition(caller, name);
    return found ? found : real_opened_with(driver_of(row), caller, name);
}

/* Not by a tail call: libc must see us as the caller. */
__attribute__((noinline, disable_tail_calls)) static void *behind_us(dlsym_function *libc, const char *name)
{
    return libc(RTLD_NEXT, name);
}

__attribute__((noinline)) void *dlsym_of_ours(const char *name)
{
    if (same_text(name, "dlsym"))
        return (void *)&dlsym;
    return same_text(name, "dlvsym") ? (void *)&dlvsym : NULL;
}

/* Whether that is a lookup of libc's own, taken from its handle. What comes next is asked for by who has one
 * of that name himself. */
static bool is_libcs(void *handle, const void *found)
{
    return handle != RTLD_NEXT && (found == (void *)real_dlsym() || found == (void *)real_dlvsym());
}

EXPORT void *dlsym(void *handle, const char *name)
{
    dlsym_function *libc = real_dlsym();
    if (!libc)
        return NULL;
    dlopen_settle();
    void *ours = dlsym_of_ours(name);
    if (ours && is_libcs(handle, libc(handle, name)))
        return ours;
    enum row row = names_form(name) && !depth_inside() ? names_row(name) : NO_ROW;
    if (row == NO_ROW)
        MUSTTAIL return libc(handle, name);
    const void *caller = __builtin_return_address(0);
    bool next = handle == RTLD_NEXT;
    enum answer answer = answer_to(row, next ? next_of(row, caller, name) : libc(handle, name), caller);
    if (answer == OURS && next)
        dlerror(); /* as after any lookup that succeeds */
    if (answer == OURS)
        return names_wrapper(row);
    if (answer == NOBODYS) /* only our own export: what would be found without it? */
        return behind_us(libc, name);
    MUSTTAIL return libc(handle, name);
}

/* Whether libc's lookup would come to us first, if our functions had the versions of libc's. */
static bool comes_to_us_first(void *handle, const char *name, const void *ours, const void *caller)
{
    return handle == RTLD_DEFAULT || (handle == RTLD_NEXT && loaded_next_definition(caller, name) == ours);
}

EXPORT void *dlvsym(void *handle, const char *name, const char *version)
{
    dlvsym_function *libc = real_dlvsym();
    if (!libc)
        return NULL;
    dlopen_settle();
    const void *caller = __builtin_return_address(0);
    void *ours = dlsym_of_ours(name);
    void *found = ours ? libc(handle, name, version) : NULL;
    if (found && (comes_to_us_first(handle, name, ours, caller) || is_libcs(handle, found)))
        return ours;
    enum row row = names_form(name) && !depth_inside() ? names_row(name) : NO_ROW;
    if (row != NO_ROW && answer_to(row, libc(handle, name, version), caller) == OURS)
        return names_wrapper(row);
    MUSTTAIL return libc(handle, name, version);
}
