/* A lock for a few dozen instructions of which none waits. A mutex costs twice as much where there are
 * threads, as it is let go by a second locked instruction. Who finds it taken looks for a moment, then sleeps
 * for one: the holder may have lost its processor. Nobody is cancelled there. A child of fork has to set its
 * copy to nothing. */
#ifndef VGPU_BRIEF_H
#define VGPU_BRIEF_H

#include <stdatomic.h>

struct brief {
    _Atomic int held;
};

void brief_hold(struct brief *lock);

static inline void brief_let_go(struct brief *lock)
{
    atomic_store_explicit(&lock->held, 0, memory_order_release);
}

#endif
