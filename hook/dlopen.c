/* Libraries that a program opens with RTLD_DEEPBIND: the loader gives them what they are linked to before it
 * looks in us, libc's dlsym and the driver's functions. So that such a library comes to us like any other,
 * what it was given of these is exchanged for ours, once it is loaded.
 *
 * That is when anything is looked up next, as who opens a library does. Not at once: dlopen itself is passed
 * on by a tail call, as libc must see the true caller, whose run path counts.
 *
 * And libraries with variables of the functions' names: who opens the driver is about to write into them.
 */
#include "dlopen.h"
#include "depth.h"
#include "loaded.h"
#include "names.h"
#include "real.h"
#include "rebind.h"
#include "same_text.h"

#include <dlfcn.h>
#include <stddef.h>

#define MUSTTAIL __attribute__((musttail))

typedef void *dlopen_function(const char *file, int flags);

atomic_bool dlopen_any_deep;

static _Atomic(dlopen_function *) next_known;

/* The last library when all had been looked at; NULL: one may have come since, also one in its place. To walk
 * over them takes a lock that no lookup of libc's takes: who forks meanwhile leaves it locked in the child
 * for good, and a program may look something up where it keeps another thread from giving that lock back. */
static _Atomic(const struct link_map *) last_seen;

/* A library may have variables of the functions' names, and the loader has given it our functions in their
 * place: there it would write what it is about to look up. */
static atomic_bool opens_driver;

void *dlopen(const char *file, int flags);

static inline void expect_new(void)
{
    atomic_store_explicit(&last_seen, NULL, memory_order_relaxed);
}

/* libc's own: who takes dlopen over may look CUDA up in it, which would come back to us in the midst of a
 * lookup. */
void *dlopen_by_libc(const char *file, int flags)
{
    dlopen_function *libcs;
    *(void **)&libcs = loaded_libc("dlopen");
    expect_new();
    if (!libcs)
        return NULL;
    MUSTTAIL return libcs(file, flags);
}

/* The program's, behind ours: it may be of a library that was loaded before it like us. */
static __attribute__((noinline)) dlopen_function *search_next(void)
{
    dlopen_function *next;
    *(void **)&next = loaded_next_definition((const void *)&search_next, "dlopen");
    if (!next)
        *(void **)&next = loaded_libc("dlopen");
    atomic_store_explicit(&next_known, next, memory_order_relaxed);
    return next;
}

EXPORT void *dlopen(const char *file, int flags)
{
    dlopen_function *next = atomic_load_explicit(&next_known, memory_order_relaxed);
    if (!next && !(next = search_next()))
        return NULL;
    if (file && real_is_drivers_file(file)) {
        atomic_store_explicit(&opens_driver, true, memory_order_relaxed);
        dlopen_bind_deep();
    }
    if ((flags & RTLD_DEEPBIND) && !depth_inside()) {
        rebind_begin();
        atomic_store_explicit(&dlopen_any_deep, true, memory_order_relaxed);
    }
    expect_new();
    MUSTTAIL return next(file, flags);
}

/* What a library has of `name` from libc or the driver, or will once it is looked up: ours. Others may define
 * it as well, for a program that opens them deep to keep theirs. Its dlopen stays libc's, but tells of it. */
static void *ours_instead(const struct dl_phdr_info *library, const char *name, const void *found)
{
    void *of_libcs = dlsym_of_ours(name);
    enum row row = names_form(name) ? names_row(name) : NO_ROW;
    if (found && same_text(name, "dlopen"))
        of_libcs = (void *)&dlopen_by_libc;
    if (!of_libcs && row == NO_ROW)
        return NULL;
    found = found ? found : loaded_seen_from(library, name);
    if (of_libcs)
        return found && found == loaded_libc(name) ? of_libcs : NULL;
    return real_is_drivers(row, found) ? names_wrapper(row) : NULL;
}

/* An indirect function: libc's dlsym calls what is to say which one it is. It does so with the lock held that
 * keeps other threads from loading a library, so that none is half bound while we write to it, and in which
 * libc's lookups come before the lock of its list. There is no other way to have that lock. */
static void *bind_all(void)
{
    /* Another library may look something up while the loader is at work for this very thread, as who has
     * taken dlopen or malloc over does at its first call: what is opened then may not even be there yet. */
    const struct link_map *last = loaded_last();
    if (!loaded_all())
        return (void *)&dlopen;
    if (atomic_exchange(&opens_driver, false))
        rebind_variables();
    if (atomic_load_explicit(&dlopen_any_deep, memory_order_relaxed)
        && (!last || last != atomic_load_explicit(&last_seen, memory_order_relaxed))) {
        rebind_new(ours_instead);
        atomic_store_explicit(&last_seen, last, memory_order_relaxed);
    }
    return (void *)&dlopen;
}

EXPORT void vgpu_bind_deep(void) __attribute__((ifunc("bind_all")));

void dlopen_bind_deep(void)
{
    if (!real_dlsym()(RTLD_DEFAULT, "vgpu_bind_deep")) /* musl knows no indirect functions, */
        dlerror(); /* and would tell whoever opens a library next, and asks, that there is none */
}
