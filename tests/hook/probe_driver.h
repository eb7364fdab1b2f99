/* The functions of a driver that probes call, where the GPU is a clock: whoever includes this says when what is
 * recorded is done (`record`), and has included gpu_probe.c. Times in ns.
 */
#ifndef PROBE_DRIVER_H
#define PROBE_DRIVER_H

enum { EVENTS = 8 };

struct CUevent_st {
    int64_t done_ns;
};

static struct CUevent_st events[EVENTS];
static int64_t now_ns = 1000000000;
static int made;
static double clock_rate = 1; /* of the GPU's clock */

static CUresult make_stream(CUstream *stream, unsigned flags, int priority)
{
    (void)flags, (void)priority;
    *stream = (CUstream)(void *)&events;
    return CUDA_SUCCESS;
}

static CUresult make_event(CUevent *event, unsigned flags)
{
    (void)flags;
    *event = &events[made++];
    return CUDA_SUCCESS;
}

static CUresult record(CUevent event, CUstream stream);

static CUresult query(CUevent event)
{
    return event->done_ns <= now_ns ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

static CUresult elapsed_ms(float *ms, CUevent from, CUevent until)
{
    *ms = (float)((double)(until->done_ns - from->done_ns) / 1e6 * clock_rate);
    return CUDA_SUCCESS;
}

static struct real_cuda driver = {.cuStreamCreateWithPriority = make_stream,
                                  .cuEventCreate = make_event,
                                  .cuEventRecord = record,
                                  .cuEventQuery = query,
                                  .cuEventElapsedTime = elapsed_ms};
#include "one_driver.h"

#endif
