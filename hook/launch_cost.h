/* What a launch is expected to cost, and whether it is to be measured. */
#ifndef VGPU_LAUNCH_COST_H
#define VGPU_LAUNCH_COST_H

#include "launch_gate.h"

/* In ns; 0: that will soon be known, look again. May make the launch one of the lane's guesses. */
int64_t launch_cost_ns(struct launch *launch);

/* The launch is not made, or not measured: it is no guess any more. */
void launch_cost_drop_guess(struct launch *launch);

/* Of one that is about to be made. */
bool launch_cost_is_to_be_measured(struct launch *launch, uint64_t now_ns);

/* No more is measured, as there is no room. */
void launch_cost_end_sweep(struct lane *lane);

#endif
