/* A stream of our own in a context, of the greatest priority, and the events on it: when things happen on the
 * GPU, in the time of this machine, and whether the GPU works for this context (residency.h).
 *
 * That a probe is handled only while the GPU works for our context is an assumption about hardware, checked
 * by the suite for real GPUs. Where it does not hold, or the driver refuses any of this, time that others had
 * the GPU is not told from our own: then a limited container gets less than its share beside others, not
 * more. Where it waits for our own launches instead, in a hardware queue that it shares with them, that is
 * told from others' turns by when launches ended. One thread at a time, with the context current.
 */
#ifndef VGPU_GPU_PROBE_H
#define VGPU_GPU_PROBE_H

#include "cuda_abi.h"
#include "event_cost.h"
#include "past.h"
#include "residency.h"

#include <stdatomic.h>

enum { PROBE_STREAM_BITS = 6 };

struct probe {
    _Atomic(CUcontext) context; /* NULL: not opened */
    _Atomic int64_t measured_ns; /* when the last launch that is measured was made there, */
    _Atomic uint64_t user; /* and in which stream and by whom */
    CUstream stream;
    CUevent anchor, next_anchor, mark;
    int64_t anchor_at_ns; /* its time, 0: not handled yet */
    int64_t anchored_ns; /* when the anchor was sent, or the next one; 0: it is to be sent anew */
    int64_t sent_ns, least_delay_ns; /* since the anchor's time was corrected last */
    int delays, late; /* that were looked at since, and how often none of them was handled at once */
    bool anchoring; /* the next one is out */
    bool out, precise;
    int running; /* launches that are being measured: begun and not ended, as far as seen, */
    int queued; /* and not begun */
    signed char
        behind[1 << PROBE_STREAM_BITS]; /* how much speaks for it that they do behind a stream of ours */
    struct residency residency;
    struct event_cost events;
};

/* What gpu_probe_open may say once and for all. */
bool gpu_probe_possible(void);

/* Open in the current context. */
bool gpu_probe_open(struct probe *probe, CUcontext context);

/* See what has become of the probe that is out, what has ended being known. Whether others have the GPU, or
 * had it while it was out. `context`: which one of the past is its own. `look`: one follows. */
bool gpu_probe_read(struct probe *probe, const struct past *past, uint64_t context, int64_t now_ns,
                    bool look);

/* Look: send a probe unless one is out. */
void gpu_probe_send(struct probe *probe, int64_t now_ns);

/* When an event that is done was done, in ns of CLOCK_MONOTONIC; 0: cannot be told. */
int64_t gpu_probe_time(const struct probe *probe, CUevent event);

/* How much of the time since `from_ns` others had the GPU, as far as is known; and what one launch had to
 * wait for of that (residency.h). */
static inline int64_t gpu_probe_away_ns(const struct probe *probe, int64_t from_ns, int64_t until_ns,
                                        bool part)
{
    return probe->context ? residency_away_ns(&probe->residency, from_ns, until_ns, part) : 0;
}

#endif
