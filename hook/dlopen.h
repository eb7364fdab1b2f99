/* Libraries that are opened with RTLD_DEEPBIND (dlopen.c). */
#ifndef VGPU_DLOPEN_H
#define VGPU_DLOPEN_H

#include <stdatomic.h>

extern atomic_bool dlopen_any_deep __attribute__((visibility("hidden"))); /* in this process, ever */

void *dlopen_by_libc(const char *file, int flags);

void dlopen_bind_deep(void);

/* Before a lookup: what was opened since the last one comes to us from now on. By whichever thread: one opens
 * a library, and another may use it. */
static inline void dlopen_settle(void)
{
    if (__builtin_expect(atomic_load_explicit(&dlopen_any_deep, memory_order_relaxed), 0))
        dlopen_bind_deep();
}

#endif
