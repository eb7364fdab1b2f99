/* The state that all processes share, and this process's place in it. Thread safe, fork safe: a child is a
 * process of its own, with nothing.
 */
#ifndef VGPU_SIM_EXECUTION_STATE_H
#define VGPU_SIM_EXECUTION_STATE_H

#include "execution_layout.h"

/* The shared state, locked; NULL, holding nothing, when it cannot be had. */
struct execution *execution_lock(void);
void execution_unlock(struct execution *execution);

/* A context of this process is over: it leaves the GPU when its work is done. */
void execution_end_context(const char *uuid, uint64_t context);

/* All below: with the state locked. */

/* This process. */
uint32_t execution_pid(void);
uint64_t execution_start_time(void);

/* Bring the GPUs up to the present, if it is the real one. */
void execution_catch_up(struct execution *execution);

/* Forget processes that are gone. */
void execution_end_the_dead(struct execution *execution);

/* Row of the GPU, or of the lane on it of a context of this process; NOTHING when there is none and none to
 * be had. */
uint32_t execution_gpu(struct execution *execution, const char *uuid, bool add);
uint32_t execution_lane(struct execution *execution, const char *uuid, uint64_t context, bool add);

/* Whether the lane is this process's own: what a forked child has of its parent is not. */
bool execution_owns(const struct execution *execution, uint32_t lane);

#endif
