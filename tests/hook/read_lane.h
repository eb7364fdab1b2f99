/* All that reads what was measured, in one program: a lane, and a driver whose events are done at their times.
 */
#ifndef READ_LANE_H
#define READ_LANE_H

#include "beside.c"
#include "credit.c"
#include "event_cost.c"
#include "gpu_probe.c"
#undef PATIENCE_NS
#undef PUT_ASIDE_NS
#include "gpu_cost.c"
#include "counters.c"
#include "gpu_lane.c"
#include "gpu_read.c"
#include "gpu_sweep.c"
#include "past.c"
#include "residency.c"
#include "throttle.c"
#include "worked.c"


struct CUevent_st {
    int64_t done_ns;
};

struct predictor gpu_time_predictor;
static _Alignas(64) unsigned char region_file[TAIL_OFFSET + TAIL_BYTES];
_Atomic(struct region *) region_known;
static struct measured_lane lane;
static struct share share;
static const struct settings setting;
_Atomic(const struct settings *) settings_known = &setting;
static struct CUevent_st anchor = {1};
static int64_t clock_ns = 1000 * MS_NS;

static CUresult query(CUevent event)
{
    return event->done_ns <= clock_ns ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

static CUresult elapsed_ms(float *ms, CUevent from, CUevent until)
{
    *ms = (float)((double)(until->done_ns - from->done_ns) / 1e6);
    return CUDA_SUCCESS;
}

static struct real_cuda driver = {.cuEventQuery = query, .cuEventElapsedTime = elapsed_ms};
#include "one_driver.h"

const struct settings *settings_gather(void)
{
    return &setting;
}

/* Before anything else. */
static void open_lane(void)
{
    region_known = (struct region *)(void *)region_file;
    lane.lane.share = &share;
    lane.probes[0].context = (CUcontext)(void *)&driver;
    lane.probes[0].anchor = &anchor;
    lane.probes[0].anchor_at_ns = 1;
}

#endif
