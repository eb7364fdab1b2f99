/* What a measured launch cost: how much of the time between its events the GPU worked for it, beside what ran
 * on other streams and in others' turns, or that this cannot be told. */
#ifndef VGPU_GPU_COST_H
#define VGPU_GPU_COST_H

#include "gpu_sweep.h"
#include "gpu_traces.h"

/* See what was spent on launches that are not always measured: at every look. */
void gpu_cost_note_spent(struct measured_lane *lane, int64_t now_ns);

/* Of one that runs until then: without the time that others had the GPU, which is seen to the millisecond,
 * and with the part of ours that is its own. `seen`: what ran beside it was measured. */
int64_t gpu_cost_own_ns(struct measured_lane *lane, struct trace *trace, int64_t until_ns, bool seen);

/* Of one that has ended: fills in what is told of it. */
void gpu_cost_judge(struct measured_lane *lane, struct trace *trace, struct sweep *sweep, int64_t now_ns);

#endif
