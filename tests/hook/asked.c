/* Which events the driver is asked about, in each look at launches that are being measured. Words:
 *
 *     STREAM:BEGIN_CALL:END_CALL:BEGINS:ENDS[:PLACE]
 *                              a launch: the numbers of the calls around it, when its events are done, in ms
 *                              from the first look (earlier than -1000: the driver refuses to say), and the
 *                              place it has, if not the next one
 *     then                     look; what follows is launched before the next look, 1 ms later
 *
 * The last look is at the end. A line for each has the events, b or e with the number of the launch.
 */
#include "read_lane.h"

#include <stdio.h>
#include <string.h>

enum { MOST = 400 };

static struct CUevent_st begins[MOST], ends[MOST];

static CUresult answer(CUevent event)
{
    bool is_end = event >= ends && event < ends + MOST;
    printf(" %c%d", is_end ? 'e' : 'b', (int)(event - (is_end ? ends : begins)));
    return event->done_ns < 0 ? CUDA_ERROR_INVALID_HANDLE : query(event);
}

static int64_t in_ns(double ms)
{
    return 1000 * MS_NS + (int64_t)(ms * MS_NS);
}

static void launch(int number, const char *word)
{
    unsigned long long stream;
    long long begin_call, end_call;
    double began, ended;
    int place = number;
    if (sscanf(word, "%llu:%lld:%lld:%lf:%lf:%d", &stream, &begin_call, &end_call, &began, &ended, &place) < 5)
        return;
    struct trace *trace = &lane.traces[place];
    begins[number].done_ns = in_ns(began);
    ends[number].done_ns = in_ns(ended);
    trace->taken = true;
    trace->begin = &begins[number];
    trace->end = &ends[number];
    trace->running_since_ns = 0;
    trace->ended = trace->waits = false;
    trace->context = lane.probes[0].context;
    trace->stream = stream;
    trace->turn = lane.lane.threads.of;
    trace->key = 1;
    trace->expected_ns = trace->charged_ns = MS_NS;
    trace->began_ns = trace->launched_ns = trace->recorded_ns = clock_ns - MS_NS;
    trace->begin_call = begin_call;
    trace->launch_call = begin_call + 1;
    trace->end_call = end_call;
    trace_goes_out(&lane, trace);
}

static void look(void)
{
    anchor.done_ns = lane.probes[0].anchor_at_ns = clock_ns;
    gpu_read_traces(&lane, clock_ns, true);
    puts("");
    clock_ns += MS_NS;
}

int main(int count, char **words)
{
    open_lane();
    driver.cuEventQuery = answer;
    for (int i = 1, number = 0; i < count; i++)
        if (!strcmp(words[i], "then"))
            look();
        else if (number < MOST)
            launch(number++, words[i]);
    look();
    return 0;
}
