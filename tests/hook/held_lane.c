/* How a launch is measured (gpu_time.c) that is about to be made. Prints events, clock (it is waited for), or
 * nothing. Words:
 *
 *     read             somebody else reads what was measured just now
 *     guess            its kind was never measured
 *     always           it is always measured
 *     first            it is the first in its context
 *     places:WHAT      all places have events of this context (own) or of another one (other); or none is free
 *                      (taken), or those only that are kept for guesses (kept), or for these and what is always
 *                      measured (mostly)
 *     contexts         there are as many contexts as are told apart
 *     ends             its context is about to end
 *     refused          the driver makes no events
 *     unreadable       measurements could not be read just now
 */
#include "counters.c"
#include "depth.c"
#include "gpu_lane.c"
#include "gpu_time.c"
#include "past.c"
#include "throttle.c"

#include <stdio.h>

static CUresult made = CUDA_SUCCESS;

static CUresult make(CUevent *event, unsigned flags)
{
    (void)event, (void)flags;
    return made;
}

static CUresult destroy(CUevent event)
{
    (void)event;
    return CUDA_SUCCESS;
}

static CUresult note(CUevent event, CUstream stream)
{
    (void)event, (void)stream;
    return CUDA_SUCCESS;
}

static struct real_cuda driver = {
    .cuEventCreate = make, .cuEventDestroy_v2 = destroy, .cuEventRecord = note};
#include "one_driver.h"

#define CONTEXT(i) ((CUcontext)(void *)((char *)&driver + (i)))

CUcontext stream_enter(CUstream stream)
{
    (void)stream;
    return CONTEXT(1);
}

void stream_leave(CUcontext context)
{
    (void)context;
}

bool gpu_probe_possible(void)
{
    return true;
}

bool gpu_probe_open(struct probe *probe, CUcontext context)
{
    probe->context = context;
    return true;
}

int64_t gpu_clock_wait(CUstream stream, bool per_thread)
{
    (void)stream, (void)per_thread;
    return 1;
}

/* Not asked of anything here. */
void gpu_clock_end(struct measured_lane *of, const struct trace *trace, CUstream stream, bool per_thread,
                   uint64_t key, int64_t charged_ns)
{
    (void)of, (void)trace, (void)stream, (void)per_thread, (void)key, (void)charged_ns;
}

struct quiet quiet_begin(void)
{
    return (struct quiet){0};
}

void quiet_end(struct quiet quiet)
{
    (void)quiet;
}

bool region_open(void)
{
    return false;
}

struct region_device *region_device_at(int place)
{
    (void)place;
    return NULL;
}

_Thread_local struct launch_count launch_count;

void launch_count_begin(void)
{
}

static struct measured_lane lane;

static void all_places(CUcontext context, size_t taken)
{
    lane.opened = TRACES;
    for (size_t i = 0; i < TRACES; i++) {
        lane.traces[i].context = context;
        lane.traces[i].taken = i < taken;
    }
}

int main(int count, char **words)
{
    bool guess = false, always = false, first = false;
    for (int i = 1; i < count; i++) {
        const char *word = words[i];
        lane.polling |= !strcmp(word, "read");
        guess |= !strcmp(word, "guess");
        always |= !strcmp(word, "always");
        first |= !strcmp(word, "first");
        if (!strcmp(word, "places:own"))
            all_places(CONTEXT(1), 0);
        else if (!strcmp(word, "places:other"))
            all_places(CONTEXT(2), 0);
        else if (!strcmp(word, "places:taken"))
            all_places(CONTEXT(1), TRACES);
        else if (!strcmp(word, "places:kept"))
            all_places(CONTEXT(1), TRACES - GUESSES);
        else if (!strcmp(word, "places:mostly"))
            all_places(CONTEXT(1), TRACES_MOSTLY);
        else if (!strcmp(word, "contexts"))
            for (int probe = 0; probe < PROBES; probe++)
                lane.probes[probe].context = CONTEXT(2 + probe);
        else if (!strcmp(word, "ends"))
            lane.ending = CONTEXT(1);
        else if (!strcmp(word, "refused"))
            made = CUDA_ERROR_NOT_SUPPORTED;
        else if (!strcmp(word, "unreadable"))
            lane.unreadable_at_ns = monotonic_ns();
    }
    if (!first)
        lane.probes[0].context = CONTEXT(1);
    const struct trace *trace = gpu_time_begin(&lane.lane, NULL, false, guess, always, false);
    puts(!trace ? "nothing" : trace->by_clock ? "clock" : "events");
    return 0;
}
