/* Simulated CUDA driver: what cuda_contexts.c and cuda_green.c share. */
#ifndef VGPU_SIM_CONTEXTS_H
#define VGPU_SIM_CONTEXTS_H

#include "cuda_call.h"

/* Take what a context costs; a process that has one is listed. */
CUresult sim_context_appears(const struct cuda_call *call, uint64_t bytes);
uint64_t sim_context_bytes(const struct cuda_call *call);

CUresult sim_primary_retain(const struct cuda_call *call, CUdevice device, CUcontext *context);
CUresult sim_primary_release(const struct cuda_call *call, CUdevice device);

/* A green context becomes current to this thread. Where another thread has it, the program ends: NVIDIA's
 * reference (cuGreenCtxCreate) allows one at a time, and promises nothing beyond. */
void sim_green_enter(CUcontext context);

/* A context is current to this thread no more, once as often as it became so. Not looked into: it may have
 * ended, or not be green. */
void sim_green_leave(const struct CUctx_st *context);

#endif
