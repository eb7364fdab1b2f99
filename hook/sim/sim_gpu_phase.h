/* A phase of a sim-gpu-tenant's life, as its arguments say it (described in sim_gpu_tenant.c). */
#ifndef VGPU_SIM_GPU_PHASE_H
#define VGPU_SIM_GPU_PHASE_H

#include <stdbool.h>
#include <stddef.h>

enum { MAX_MIX = 8, MAX_OWN_STREAMS = 64, MAX_CONTEXTS = 16 };

enum way { BY_KERNEL, BY_EX, BY_COOPERATIVE, BY_GRAPH };

struct phase {
    unsigned long ms, nodes, streams, shared, handle, sync, burst, idle_us, kill, shapes, blocking, legacy;
    unsigned long rare, fresh, stay;
    unsigned long contexts, urgent, thread;
    enum way way;
    char mix[MAX_MIX][64];
    size_t mix_count;
};

/* Parse it, cutting the text to pieces. */
bool phase_take(struct phase *phase, char *text);

#endif
