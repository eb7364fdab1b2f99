/* Simulated CUDA driver: functions and kernels, told apart by name, and how long they run. Thread safe.
 *
 * Whoever has modules gives out functions with function_named(); a CUkernel is the same thing.
 */
#ifndef VGPU_SIM_FUNCTIONS_H
#define VGPU_SIM_FUNCTIONS_H

#include "cuda_call.h"
#include "execution_layout.h"

struct CUfunc_st {
    struct CUfunc_st *next;
    CUmodule module;
    char name[64];
};

/* The function of this name in the module; the same each time. NULL when there is no memory. */
CUfunction function_named(CUmodule module, const char *name);

/* How long the next run takes on this GPU (its number): by its name, else kernel_us. */
uint64_t function_draw_ns(const struct sim_node *node, CUfunction function, long gpu);

/* Which meeting its runs on this GPU are; none of number 0. */
struct meeting function_meeting(const struct sim_node *node, CUfunction function, long gpu);

/* Whether kernels take any time at all. */
bool functions_take_time(const struct sim_node *node);

#endif
