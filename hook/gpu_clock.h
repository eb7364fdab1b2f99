/* What a launch costs where events do not tell: it is waited for, and the time that this takes is what it
 * cost. That is more than it was where others have the GPU as well, and never less.
 */
#ifndef VGPU_GPU_CLOCK_H
#define VGPU_GPU_CLOCK_H

#include "gpu_traces.h"

/* Wait until the stream has nothing to do, but no longer than a launch is charged for: a kernel may wait for
 * what the program does next. Gives the time, 0 if the driver does not tell. */
int64_t gpu_clock_wait(CUstream stream, bool per_thread);

/* Wait for a launch that was charged so much, and charge what it cost. */
void gpu_clock_end(struct measured_lane *lane, const struct trace *trace, CUstream stream, bool per_thread,
                   uint64_t key, int64_t charged_ns);

#endif
