/* The time between two events that are done, as the driver tells it. */
#ifndef VGPU_EVENT_TIME_H
#define VGPU_EVENT_TIME_H

#include "real.h"

enum { EVENT_TIMED = 0, STREAM_NON_BLOCKING = 1 }; /* flags of what is created */

/* False when the driver does not say, or nothing that can be. */
static inline bool event_elapsed(CUevent from, CUevent until, int64_t *ns)
{
    float ms;
    if (real_cuda()->cuEventElapsedTime(&ms, from, until) != CUDA_SUCCESS || !(ms > -1e9F && ms < 1e9F))
        return false;
    *ns = (int64_t)((double)ms * 1e6);
    return true;
}

#endif
