/* What is doubted of kinds (gpu_lane.c): each number of the input is a kind that was measured once more; prints
 * how often it was, as far as that is still known.
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

struct predictor gpu_time_predictor;
static struct measured_lane lane;

int main(void)
{
    unsigned long long key;
    while (scanf("%llu", &key) == 1)
        printf("%lld\n", (long long)++trace_doubt(&lane, key)->samples);
    return 0;
}
