#include "event_cost.h"
#include "event_time.h"
#include "monotonic.h"

enum { TRIES_MOST = 64, LOOKS_APART = 1024 };
enum { ROW = 4 }; /* events behind the first one */

#define EVENT_MOST_NS 10000 /* something was between them */

/* What was asked. False while it is not told. */
static bool hear(struct event_cost *cost)
{
    int64_t ns;
    CUresult result = real_cuda()->cuEventQuery(cost->last);
    if (result == CUDA_ERROR_NOT_READY)
        return false;
    cost->out = false;
    if (result != CUDA_SUCCESS || !event_elapsed(cost->first, cost->last, &ns) || ns < 0
        || ns / ROW > EVENT_MOST_NS)
        return true;
    if (!cost->seen || ns / ROW < cost->least_ns)
        cost->least_ns = ns / ROW;
    cost->seen = true;
    cost->told += ns > cost->longer_than_ns;
    cost->told_behind += cost->longer_than_ns < 0;
    return true;
}

void event_cost_look(struct event_cost *cost, CUevent unfinished)
{
    const struct real_cuda *real = real_cuda();
    bool later = ++cost->looks % LOOKS_APART != 0;
    if (!cost->stream || !real->cuStreamWaitEvent || (cost->out && !hear(cost)))
        return;
    unsigned tries = unfinished ? cost->tries : cost->looks;
    unsigned told = unfinished ? cost->told_behind : cost->told;
    if ((told >= EVENT_COST_TOLD || tries >= TRIES_MOST) && later)
        return;
    int64_t before_ns = (int64_t)monotonic_ns();
    cost->tries += unfinished != NULL;
    if ((unfinished && real->cuStreamWaitEvent(cost->stream, unfinished, 0) != CUDA_SUCCESS)
        || real->cuEventRecord(cost->first, cost->stream) != CUDA_SUCCESS)
        return;
    for (int i = 0; i < ROW; i++)
        if (real->cuEventRecord(cost->last, cost->stream) != CUDA_SUCCESS)
            return;
    bool behind = unfinished && real->cuEventQuery(unfinished) == CUDA_ERROR_NOT_READY;
    int64_t sent_within_ns = (int64_t)monotonic_ns() - before_ns;
    cost->longer_than_ns = behind ? -1 : sent_within_ns + sent_within_ns / 2;
    cost->out = true;
}

int64_t event_cost_without_ns(const struct event_cost *cost, int64_t took_ns)
{
    int64_t event_ns = event_cost_ns(cost);
    return took_ns - (event_ns < took_ns / 2 ? event_ns : took_ns / 2);
}
