/* A lock for a few dozen instructions, of which none waits for anything but a page. A mutex costs twice as
 * much where there are threads, as it is let go by a second locked instruction. Who finds it taken looks for
 * a moment, then sleeps for one, and again: the holder may have lost its processor. Nobody is cancelled
 * there. A child of fork has to let go of its copy. One that no handler of fork has seen, as it was made by
 * clone itself, takes what it finds taken. */
#ifndef VGPU_BRIEF_H
#define VGPU_BRIEF_H

#include <stdatomic.h>

struct brief {
    _Atomic int held;
};

/* Whose threads hold them; 0: not known, so nothing is taken. */
extern _Atomic int brief_pid __attribute__((visibility("hidden")));

void brief_wait(struct brief *lock);

static inline void brief_hold(struct brief *lock)
{
    while (__builtin_expect(atomic_exchange_explicit(&lock->held, 1, memory_order_acquire), 0))
        brief_wait(lock);
}

static inline void brief_let_go(struct brief *lock)
{
    atomic_store_explicit(&lock->held, 0, memory_order_release);
}

#endif
