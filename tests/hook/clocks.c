/* Threads that look at the clock one after the other and then get to what they share in the other order.
 * Prints whether a monitor's block still holds, and whether a launch of a known kind on one of several
 * streams is left unmeasured, for the thread whose clock is the earlier by 1 ns.
 */
#include "launch_cost.c"
#include "leases.c"
#include "throttle.c"

#include <stdio.h>

enum { KIND = 1, NOW_NS = 1000000000 };

static struct region region;
struct predictor gpu_time_predictor;

struct region *region_mapped(void)
{
    return &region;
}

int gpu_time_guesses(struct lane *lane, uint64_t key)
{
    (void)lane, (void)key;
    return 0;
}

uint64_t gpu_time_stream(CUstream stream, bool per_thread)
{
    (void)per_thread;
    return (uintptr_t)stream;
}

static bool blocked(void)
{
    atomic_store(&region.recent_kernel, -1);
    leases_until_ns(0, 0, NOW_NS + 1);
    return leases_until_ns(0, 0, NOW_NS) && atomic_load(&region.recent_kernel) == -1;
}

/* The other one has just begun a sweep, and its launches are not told yet. */
static bool unmeasured(void)
{
    static struct share share;
    static struct lane lane = {.share = &share};
    struct launch launch = {.lane = &lane, .key = KIND, .stream = (CUstream)(void *)&share};
    estimate_claim(&gpu_time_predictor, KIND);
    for (int i = 0; i < ESTIMATE_SAMPLES; i++)
        estimate_learn(estimate_find(&gpu_time_predictor, KIND), KIND, 10000, 10000);
    atomic_store(&lane.last_stream, (uintptr_t)&share);
    atomic_store(&lane.several_streams_at_ns, NOW_NS + 1);
    atomic_store(&lane.measured_at_ns, NOW_NS + 1);
    atomic_store(&lane.swept_at_ns, NOW_NS + 1);
    return !launch_cost_is_to_be_measured(&launch, NOW_NS);
}

int main(void)
{
    printf("%d %d\n", blocked(), unmeasured());
    return 0;
}
