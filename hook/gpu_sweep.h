/* Launches on several streams run beside each other, so what each cost is only known while all of them are
 * measured: for a while now and then, a sweep. What ran beside the first and the last of a sweep is not, so
 * they are judged together: what the GPU worked while every stream was being measured is what the launches
 * that began in that time cost together, whatever each of them seems to have.
 */
#ifndef VGPU_GPU_SWEEP_H
#define VGPU_GPU_SWEEP_H

#include "gpu_traces.h"

struct sweep {
    bool over; /* nothing of it is left to come: its launches can be settled */
    int64_t from_ns, until_ns; /* every stream was measured; never, if they are the same */
    double scale; /* what its launches cost, of what they seem to have */
};

/* The one that is under way on the lane, as far as its launches have ended. */
struct sweep gpu_sweep_see(struct measured_lane *lane, int64_t now_ns);

/* Whether a launch of the sweep tells anything of its kind. */
bool gpu_sweep_has(const struct sweep *sweep, const struct trace *trace);

/* Give each launch of the sweep what those of its kind cost in the mean. */
void gpu_sweep_level(struct measured_lane *lane);

#endif
