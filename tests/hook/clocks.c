/* Threads that look at the clock one after the other and then get to what they share in the other order.
 * Prints whether a monitor's block still holds for the thread whose clock is the earlier by 1 ns, whether it
 * does as long as the later one asked for, and beyond the moment between a monitor's counting down and its
 * judging; and whether a launch of a known kind on one of several streams is left unmeasured, for the thread
 * whose clock is the earlier.
 */
#include "launch_cost.c"
#include "leases.c"
#include "throttle.c"

#include <stdio.h>

enum { KIND = 1, NOW_NS = 1000000000 };

static union {
    struct region region;
    char bytes[TAIL_OFFSET + TAIL_BYTES];
} file;
struct predictor gpu_time_predictor;
_Atomic(struct region *) region_known = &file.region;

/* What the library sleeps by: a monitor judges meanwhile. */
int clock_nanosleep(clockid_t clock, int flags, const struct timespec *until, struct timespec *left)
{
    (void)clock, (void)flags, (void)until, (void)left;
    atomic_store(&file.region.recent_kernel, -1);
    return 0;
}

void gpu_time_drop_tokens(struct lane *lane)
{
    (void)lane;
}

int gpu_time_guesses(struct lane *lane, uint64_t key)
{
    (void)lane, (void)key;
    return 0;
}

uint64_t gpu_time_stream_bit(struct lane *lane, uint64_t stream, uint64_t now_ns, int64_t busy_ns)
{
    (void)lane, (void)now_ns, (void)busy_ns;
    return stream;
}

bool gpu_time_in_series(struct lane *lane, uint64_t bit, uint64_t now_ns, int64_t for_ns)
{
    (void)lane, (void)bit, (void)now_ns;
    return for_ns != 0;
}

uint64_t gpu_time_busy_streams(struct lane *lane, uint64_t now_ns)
{
    (void)lane, (void)now_ns;
    return 0;
}

uint64_t gpu_time_stream(CUstream stream, bool per_thread)
{
    (void)per_thread;
    return (uintptr_t)stream;
}

static bool blocked(void)
{
    atomic_store(&file.region.recent_kernel, -1);
    leases_until_ns(0, 0, NOW_NS + 1);
    return leases_until_ns(0, 0, NOW_NS) && atomic_load(&file.region.recent_kernel) == ASKED;
}

/* What others have asked since is not put back. */
static bool kept(void)
{
    atomic_store(&file.region.recent_kernel, -1);
    leases_until_ns(0, 0, NOW_NS + MONITOR_LEASE_NS);
    atomic_store(&file.region.recent_kernel, -1);
    leases_until_ns(0, 0, NOW_NS);
    return leases_until_ns(0, 0, NOW_NS + MONITOR_LEASE_NS + 1) == NOW_NS + 2 * MONITOR_LEASE_NS;
}

/* Counted down, and not judged yet. */
static bool unjudged(void)
{
    atomic_store(&file.region.recent_kernel, 0);
    return leases_until_ns(0, 0, NOW_NS + MONITOR_LEASE_NS)
        && atomic_load(&file.region.recent_kernel) == ASKED;
}

/* The other one has just begun a sweep, and its launches are not told yet. */
static bool unmeasured(void)
{
    static struct share share;
    static struct lane lane = {.share = &share};
    struct launch launch = {.lane = &lane, .key = KIND, .stream = (CUstream)(void *)&share};
    estimate_claim(&gpu_time_predictor, KIND);
    for (int i = 0; i < ESTIMATE_SAMPLES; i++)
        estimate_learn(&gpu_time_predictor, estimate_find(&gpu_time_predictor, KIND), KIND, 10000, 10000);
    atomic_store(&lane.last_stream, (uintptr_t)&share);
    atomic_store(&lane.several_streams_at_ns, NOW_NS + 1);
    atomic_store(&lane.measured_at_ns, NOW_NS + 1);
    atomic_store(&lane.swept_at_ns, NOW_NS + 1);
    return !launch_cost_is_to_be_measured(&launch, NOW_NS);
}

int main(void)
{
    printf("%d %d %d %d\n", blocked(), kept(), unjudged(), unmeasured());
    return 0;
}
