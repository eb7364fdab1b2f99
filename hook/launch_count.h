/* How many launches each thread has made: noted here, and told to the region's readers many at a time, and
 * when the thread ends; of one that ends with its process up to LAUNCH_COUNT_MOST - 1 are never told.
 *
 * In a process with several devices each launch is told for its own, but for those that an open gate
 * (launch_gate.h) lets pass without a look at where they go: they are told for the device of the one that
 * is looked at, which is one of LAUNCH_COUNT_MOST. No usual turn of devices is a multiple of that prime, so
 * each device has its part in the long run.
 *
 * For the calling thread, by the gate alone.
 */
#ifndef VGPU_LAUNCH_COUNT_H
#define VGPU_LAUNCH_COUNT_H

#include "gpu_time.h"

enum { LAUNCH_COUNT_MOST = 71 }; /* that are not told yet */
#define LAUNCH_COUNT_FRESH (UINT32_C(1) << 31) /* of a thread that has told nothing yet */

struct launch_count {
    /* Less LAUNCH_COUNT_FRESH, such that a new thread's is 0: initial values would take a page of each
     * process. */
    uint32_t noted;
    uint8_t known[MAX_DEVICES]; /* of them, by place, those of which it is known where they were made */
};
extern _Thread_local struct launch_count launch_count
    __attribute__((tls_model("initial-exec"), visibility("hidden")));

/* 0 after launch_count_tell. */
static inline uint32_t launch_count_untold(void)
{
    return launch_count.noted - LAUNCH_COUNT_FRESH;
}

static inline void launch_count_add(void)
{
    launch_count.noted++;
}

/* Once, before all others. */
void launch_count_begin(void);

/* One that is counted next is on the device at `place`, which is one of several. Gives the place back. */
int launch_count_at(int place);

/* Tell them all; those of which nothing else is known were on the lane's device. */
void launch_count_tell(struct lane *lane);

/* The calling thread goes on in a child of fork: what is untold is the parent's. */
static inline void launch_count_forget(void)
{
    launch_count = (struct launch_count){0};
}

#endif
