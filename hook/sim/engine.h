/* How simulated GPUs get through their work, without any clock of their own: pure steps over the shared
 * state, which must be locked.
 */
#ifndef VGPU_SIM_ENGINE_H
#define VGPU_SIM_ENGINE_H

#include "execution_layout.h"

/* Let all GPUs work until `limit_ns`. With `stop`, return as soon as anything has finished; the time is then
 * in now_ns. */
void engine_advance(struct execution *execution, uint64_t limit_ns, bool stop);

/* When something will finish or begin next if nothing is added; UINT64_MAX: never. To be asked after
 * engine_advance(). */
uint64_t engine_next_ns(const struct execution *execution);

/* The process is gone: what it had pending is dropped, its GPU time stays on record. */
void engine_end_lane(struct execution *execution, uint32_t lane);

/* The least time in ns before the stream's first `target` items can be done. */
uint64_t engine_least_ns(const struct execution *execution, uint32_t stream, uint64_t target);

#endif
