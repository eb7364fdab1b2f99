#include "counters.h"

__attribute__((noinline)) void count_more(_Atomic uint64_t *counter, uint64_t more)
{
    atomic_fetch_add_explicit(counter, more, memory_order_relaxed);
}
