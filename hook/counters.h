/* Numbers that many add to and nobody goes by at once. */
#ifndef VGPU_COUNTERS_H
#define VGPU_COUNTERS_H

#include <stdatomic.h>
#include <stdint.h>

/* No place is told that by another: it orders nothing. A call, as for aarch64 it is less code than a loop. */
void count_more(_Atomic uint64_t *counter, uint64_t more);

static inline void count_more_ns(_Atomic int64_t *counter, int64_t more)
{
    count_more((_Atomic uint64_t *)counter, (uint64_t)more);
}

#endif
