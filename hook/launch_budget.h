/* What launches are paid from: the container's share of the device's time, of which the process takes chunks
 * ahead, in turn with the container's others, and its threads take turns; and the share that a process was
 * given for itself, if that is lower. */
#ifndef VGPU_LAUNCH_BUDGET_H
#define VGPU_LAUNCH_BUDGET_H

#include "launch_gate.h"

/* Of what was taken ahead; false: not enough of that is left. */
static inline bool launch_budget_spend(struct lane *lane, int64_t cost_ns)
{
    if (atomic_fetch_sub_explicit(&lane->tokens_ns, cost_ns, memory_order_relaxed) >= cost_ns)
        return true;
    atomic_fetch_add_explicit(&lane->tokens_ns, cost_ns, memory_order_relaxed);
    return false;
}

/* The share of a process that has lowered its own; 0: it has not. Before anything is taken. */
void launch_budget_keep_own(struct lane *lane, uint32_t permille, uint64_t now_ns);

/* Pay for the launch, of the container's `permille`. False: it is not to be made yet, as the share is spent
 * or it is somebody else's turn. */
bool launch_budget_take(struct launch *launch, int64_t cost_ns, uint32_t permille, uint64_t now_ns);

#endif
