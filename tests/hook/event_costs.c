/* What an event is found to take (event_cost.c). Prints what a launch took without it, in ns.
 *
 *     event_costs TOOK_NS [BETWEEN_NS[!]]...   for so long lies between the events of the launch, and between the
 *                              two of ours each time that they are sent; ! where what they wait for is over by then
 */
#include "event_cost.c"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *word;

static CUresult wait_for(CUstream stream, CUevent event, unsigned flags)
{
    (void)stream, (void)event, (void)flags;
    return CUDA_SUCCESS;
}

static CUresult record(CUevent event, CUstream stream)
{
    (void)event, (void)stream;
    return CUDA_SUCCESS;
}

/* What they wait for (the only event that has an address here) is over by the next look. */
static CUresult query(CUevent event)
{
    return event && !strchr(word, '!') ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
}

static CUresult elapsed_ms(float *ms, CUevent from, CUevent until)
{
    (void)from, (void)until;
    *ms = (float)(atof(word) / 1e6);
    return CUDA_SUCCESS;
}

static struct real_cuda driver = {.cuStreamWaitEvent = wait_for,
                                  .cuEventRecord = record,
                                  .cuEventQuery = query,
                                  .cuEventElapsedTime = elapsed_ms};
#include "one_driver.h"

int main(int count, char **words)
{
    static struct event_cost cost = {.stream = (CUstream)(void *)&driver};
    CUevent unfinished = (CUevent)(void *)&driver;
    event_cost_look(&cost, NULL); /* nothing is measured; every look counts, and now each second one asks */
    for (int i = 2; i < count; i++) {
        word = words[i];
        event_cost_look(&cost, unfinished);
        event_cost_look(&cost, NULL); /* a millisecond later: what they wait for is over */
    }
    printf("%lld\n", (long long)event_cost_without_ns(&cost, atoll(words[1])));
    return 0;
}
