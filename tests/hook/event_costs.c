/* What an event is found to take (event_cost.c). Prints what a launch took without it, in ns.
 *
 *     event_costs TOOK_NS [EACH_NS[!|~][@SENT_NS]]...   for so long lies between the events of the launch; each time that
 *                              events of ours are sent, each of them takes so long, and so long to be sent (1000);
 *                              ! where what they wait for is over by then, ~ where there is nothing to wait for
 */
#include "event_cost.c"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *word;
static int64_t clock_ns, row_ns; /* the latter between the first of a row and its last */
static char running, first, last;

int clock_gettime(clockid_t clock, struct timespec *now)
{
    (void)clock;
    *now = (struct timespec){.tv_nsec = clock_ns};
    return 0;
}

static CUresult wait_for(CUstream stream, CUevent event, unsigned flags)
{
    (void)stream, (void)event, (void)flags;
    return CUDA_SUCCESS;
}

static CUresult record(CUevent event, CUstream stream)
{
    (void)stream;
    const char *sent = strchr(word, '@');
    clock_ns += sent ? atoll(sent + 1) : 1000;
    row_ns = event == (CUevent)(void *)&first ? 0 : row_ns + atoll(word);
    return CUDA_SUCCESS;
}

static CUresult query(CUevent event)
{
    return event == (CUevent)(void *)&running && !strchr(word, '!') ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
}

static CUresult elapsed_ms(float *ms, CUevent from, CUevent until)
{
    (void)from, (void)until;
    *ms = (float)((double)row_ns / 1e6);
    return CUDA_SUCCESS;
}

static struct real_cuda driver = {.cuStreamWaitEvent = wait_for,
                                  .cuEventRecord = record,
                                  .cuEventQuery = query,
                                  .cuEventElapsedTime = elapsed_ms};
#include "one_driver.h"

int main(int count, char **words)
{
    static struct event_cost cost = {
        .stream = (CUstream)(void *)&driver, .first = (CUevent)(void *)&first, .last = (CUevent)(void *)&last};
    for (int i = 2; i < count; i++) { /* each look hears of what was sent in the one before */
        word = words[i];
        event_cost_look(&cost, strchr(word, '~') ? NULL : (CUevent)(void *)&running);
    }
    event_cost_look(&cost, NULL);
    printf("%lld\n", (long long)event_cost_without_ns(&cost, atoll(words[1])));
    return 0;
}
