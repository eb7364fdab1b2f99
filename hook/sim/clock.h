/* The time that the simulated GPUs live in: CLOCK_MONOTONIC, or a virtual clock that all threads that take
 * part in it share, and which goes on when all of them wait.
 *
 * Exactly one of them runs at a time, the earliest first, so the same programs with the same seed do the same
 * again. A thread that runs carries its own time ahead of the shared one, by what its calls cost; it waits
 * its turn as soon as it is a few microseconds ahead, or wants to know anything of the GPU.
 */
#ifndef VGPU_SIM_CLOCK_H
#define VGPU_SIM_CLOCK_H

#include "execution_layout.h"

#define VIRTUAL_START_NS (1000ULL * 1000 * 1000 * 1000) /* programs take a time of 0 for none */

/* What a thread waits for: the first `target` items of a stream, or the turn `target` of an event. Numbers as
 * in execution.h. */
struct awaited {
    uint32_t stream, event;
    uint64_t target;
};

/* Whether it has come. The state is locked. */
bool clock_reached(const struct execution *execution, const struct awaited *awaited);

uint64_t clock_real_ns(void);

/* Sleep for `ns`, but never so briefly that waiting is a busy loop. */
void clock_real_sleep(uint64_t ns);

/* The calling thread's own time. The state is locked. */
uint64_t clock_local_ns(const struct execution *execution);

/* Let the shared time catch up with the calling thread. The state is locked, and not meanwhile. */
void clock_settle(struct execution *execution);

/* Wait; may return early. The state is locked, and not meanwhile. */
void clock_await(struct execution *execution, const struct awaited *awaited);

/* The calling thread was busy for `ns`. Without effect on real time. */
void clock_spend(uint64_t ns);

/* The process ends; forked. */
void clock_leave(void);
void clock_forget_parent(void);

#endif
