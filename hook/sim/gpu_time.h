/* How long the simulated GPUs really worked for whom: the oracle that limits are judged by.
 *
 * Counted by the model itself, in ns, whatever anyone reports; a process that died keeps its line (until
 * 1024 others came after it). The functions are exported by both simulated libraries. Thread safe.
 */
#ifndef VGPU_SIM_GPU_TIME_H
#define VGPU_SIM_GPU_TIME_H

#include <stddef.h>
#include <stdint.h>

struct sim_gpu_time {
    uint32_t pid, live;
    uint64_t start_time; /* of the process, in clock ticks since boot */
    uint64_t busy_ns; /* the GPU worked for it */
    uint64_t kernels; /* that finished */
};

/* The processes that ever had work on this GPU, oldest first. Returns how many there are; fills at most
 * `room`. */
size_t sim_gpu_times(const char *uuid, struct sim_gpu_time *times, size_t room);

/* Nanoseconds that this GPU worked for the process in all its life (pid 0: for anyone). */
uint64_t sim_gpu_time(const char *uuid, uint32_t pid);

/* The time that all this is counted in: CLOCK_MONOTONIC, or the virtual clock. */
uint64_t sim_now_ns(void);

#endif
