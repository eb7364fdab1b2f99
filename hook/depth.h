/* Whether this thread is inside a wrapper: what the driver itself calls or looks up then is its own business,
 * or a block would be charged twice. One word of thread-local storage, of the kind that needs no call and no
 * allocation.
 */
#ifndef VGPU_DEPTH_H
#define VGPU_DEPTH_H

#include <stdbool.h>

extern _Thread_local unsigned depth_of_thread
    __attribute__((tls_model("initial-exec"), visibility("hidden")));

static inline bool depth_inside(void)
{
    return depth_of_thread > 0;
}

static inline void depth_enter(void)
{
    depth_of_thread++;
}

static inline void depth_leave(void)
{
    depth_of_thread--;
}

#endif
