/* How often the hook's thread looks at what is being measured, in us. Words:
 *
 *     lane        something was launched under a limit
 *     contexts    by two contexts of the process
 *     sweep       all launches are being measured, since just now
 *     long        since long
 *     contended   others have the GPU, too
 *     another     two contexts of the process use another GPU
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
            lane.lane.sweep_out = 1, lane.lane.swept_at_ns = monotonic_ns();
        else if (!strcmp(words[i], "long"))
            lane.lane.sweep_out = 1, lane.lane.swept_at_ns = monotonic_ns() - 100 * MS_NS;
        else if (!strcmp(words[i], "contended"))
            share.contended_at_ns = monotonic_ns() + 1000 * MS_NS;
        else if (!strcmp(words[i], "another"))
            gpu_lanes[0] = &gpu_measured[0].lane, gpu_measured[0].lane.contexts = 2, gpu_measured[0].lane.share = &share;
        else
            return 2;
    printf("%d\n", (int)(gpu_time_poll_every_ns() / 1000));
    return 0;
}
