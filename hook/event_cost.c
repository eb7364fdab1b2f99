#include "event_cost.h"
#include "event_time.h"

enum { TRIES_MOST = 64, LOOKS_APART = 1024 };

#define EVENT_MOST_NS 10000 /* something was between them */

/* What was asked. False while it is not told. */
static bool hear(struct event_cost *cost)
{
    int64_t ns;
    CUresult result = real_cuda()->cuEventQuery(cost->second);
    if (result == CUDA_ERROR_NOT_READY)
        return false;
    cost->out = false;
    if (result != CUDA_SUCCESS || !cost->behind || !event_elapsed(cost->first, cost->second, &ns) || ns < 0
        || ns > EVENT_MOST_NS)
        return true;
    if (!cost->told++ || ns < cost->least_ns)
        cost->least_ns = ns;
    return true;
}

void event_cost_look(struct event_cost *cost, CUevent unfinished)
{
    const struct real_cuda *real = real_cuda();
    bool later = ++cost->looks % LOOKS_APART != 0;
    if (!cost->stream || !real->cuStreamWaitEvent || (cost->out && !hear(cost)) || !unfinished
        || ((cost->told >= EVENT_COST_TOLD || cost->tries >= TRIES_MOST) && later))
        return;
    cost->tries++;
    if (real->cuStreamWaitEvent(cost->stream, unfinished, 0) != CUDA_SUCCESS
        || real->cuEventRecord(cost->first, cost->stream) != CUDA_SUCCESS
        || real->cuEventRecord(cost->second, cost->stream) != CUDA_SUCCESS)
        return;
    cost->out = true;
    cost->behind = real->cuEventQuery(unfinished) == CUDA_ERROR_NOT_READY;
}

int64_t event_cost_without_ns(const struct event_cost *cost, int64_t took_ns)
{
    int64_t event_ns = event_cost_ns(cost);
    return took_ns - (event_ns < took_ns / 2 ? event_ns : took_ns / 2);
}
