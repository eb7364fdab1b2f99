/* CLOCK_MONOTONIC in ns: the one clock of everything that waits here. */
#ifndef VGPU_MONOTONIC_H
#define VGPU_MONOTONIC_H

#include <stdint.h>
#include <time.h>

inline uint64_t monotonic_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

/* Since `then_ns`. Another thread may have noted a later time than the caller's: then it is less than 0. */
static inline int64_t elapsed_ns(uint64_t then_ns, uint64_t now_ns)
{
    return (int64_t)(now_ns - then_ns);
}

/* Sleep until then; a signal may end it early. Nobody is cancelled there. */
void monotonic_sleep_until(uint64_t ns);

/* The same for who holds nothing: a thread may be cancelled there. */
void monotonic_sleep_holding_nothing(uint64_t ns);

#endif
