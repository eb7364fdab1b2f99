/* How often the hook's thread looks at what is being measured, in us. Words:
 *
 *     lane        something was launched under a limit
 *     contexts    by two contexts of the process
 *     sweep       all launches are being measured, for a while
 *     contended   others have the GPU, too
 */
#include "depth.c"
#include "read_lane.h"
#undef PATIENCE_NS
#include "gpu_poll.c"
#include "monotonic.c"

#include <stdio.h>
#include <string.h>

_Atomic(struct lane *) gpu_lanes[MAX_DEVICES];
struct measured_lane gpu_measured[MAX_DEVICES];

struct quiet quiet_begin(void)
{
    return (struct quiet){0};
}

void quiet_end(struct quiet quiet)
{
    (void)quiet;
}

bool busy_charged(struct busy_shown *shown, int place, int64_t charged_ns)
{
    (void)shown, (void)place, (void)charged_ns;
    return false;
}

int main(int count, char **words)
{
    open_lane();
    for (int i = 1; i < count; i++)
        if (!strcmp(words[i], "lane"))
            gpu_lanes[MAX_DEVICES - 1] = &lane.lane;
        else if (!strcmp(words[i], "contexts"))
            lane.lane.contexts = 2;
        else if (!strcmp(words[i], "sweep"))
            lane.lane.sweep_out = 1;
        else if (!strcmp(words[i], "contended"))
            share.contended_at_ns = monotonic_ns();
        else
            return 2;
    printf("%d\n", (int)(gpu_time_poll_every_ns() / 1000));
    return 0;
}
