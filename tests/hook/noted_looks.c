/* What is queued while others have the GPU (gpu_cost.c): each number of the input is a moment at which what was
 * charged is looked at, in us: 1 ms, all by the second of them. Others have the GPU until 600 us; prints how
 * much of it is queued still.
 */
#include "beside.c"
#include "gpu_cost.c"
#include "counters.c"
#include "gpu_lane.c"
#include "gpu_sweep.c"
#include "past.c"
#include "residency.c"
#include "throttle.c"
#include "worked.c"

#include <stdio.h>

enum { LOOK_NS = 10000, LOOKS = 100, AWAY = 60 };

struct predictor gpu_time_predictor;
static struct measured_lane lane;

int main(void)
{
    struct residency *looks = &lane.probes->residency;
    static char context;
    long at_us;
    lane.probes->context = (void *)&context;
    loose_store(&lane.lane.several_streams_at_ns, 1);
    for (int i = 1; i <= LOOKS; i++) {
        residency_look(looks, i * LOOK_NS, 1);
        looks->looks[(looks->count - 1) % RESIDENCY_LOOKS].away = i <= AWAY;
        looks->looks[(looks->count - 1) % RESIDENCY_LOOKS].back_ns = i * LOOK_NS;
    }
    while (scanf("%ld", &at_us) == 1) {
        gpu_cost_note_spent(&lane, at_us * 1000);
        printf("%lld\n", (long long)lane.worked.queued_ns / 1000);
        loose_store(&lane.lane.granted_ns, 1000000);
    }
    return 0;
}
