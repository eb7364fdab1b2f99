/* Libraries that are opened with RTLD_DEEPBIND (dlopen.c). */
#ifndef VGPU_DLOPEN_H
#define VGPU_DLOPEN_H

#include <stdatomic.h>
#include <stdbool.h>

extern atomic_bool dlopen_any_deep __attribute__((visibility("hidden"))); /* in this process, ever */
extern _Thread_local bool dlopen_was_deep
    __attribute__((tls_model("initial-exec"), visibility("hidden"))); /* the last one of the thread */

void *dlopen_by_libc(const char *file, int flags);

void dlopen_bind_deep(void);

/* Before a lookup: what the thread has opened so comes to us from now on. The thread's word is not there yet
 * where the loader has not bound us. */
static inline void dlopen_settle(void)
{
    if (__builtin_expect(atomic_load_explicit(&dlopen_any_deep, memory_order_relaxed), 0) && dlopen_was_deep)
        dlopen_bind_deep();
}

#endif
