/* What code and arrays take of a GPU: until it is given back, and as long as their context at most. Thread
 * safe; a child of fork has none.
 */
#ifndef VGPU_SIM_CONTENTS_H
#define VGPU_SIM_CONTENTS_H

#include "cuda_call.h"

/* In whoever takes it, at a place that stays. */
struct sim_content {
    struct sim_content *next;
    CUcontext context;
    uint64_t bytes;
    char uuid[TEXT_BYTES];
};

/* Take `bytes` of the call's GPU for the current context; false when they are not there. */
bool sim_content_take(const struct cuda_call *call, struct sim_content *content, uint64_t bytes);

/* Give them back, unless they ended with their context. */
void sim_content_give(struct sim_content *content);

/* Give back all that was taken in the context, which ends. */
void sim_contents_end_context(CUcontext context);

#endif
