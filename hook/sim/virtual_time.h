/* Puts a program under the simulated driver's virtual clock. */
#ifndef VGPU_SIM_VIRTUAL_TIME_H
#define VGPU_SIM_VIRTUAL_TIME_H

#include <stdbool.h>
#include <stdint.h>

/* Begin to take part; `libcuda` is its handle of dlopen. Time begins when `processes` of them have joined;
 * `rank` says which this one is. False when the driver's time is real, or the driver is not simulated. */
bool virtual_time_join(void *libcuda, unsigned processes, unsigned rank);

/* As where a container's processor time is used up: of each `period_ns`, this process' threads run for
 * `on_ns`. One that would wake in the rest wakes at the end of that. */
void virtual_time_quota(uint64_t on_ns, uint64_t period_ns);

#endif
