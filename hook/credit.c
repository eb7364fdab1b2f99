#include "credit.h"
#include "region.h"
#include "region_file.h"

#define FRESH_NS (UINT64_C(3) * MS_NS) /* who waits says so every millisecond */
#define AT_ONCE_NS MS_NS /* that goes out, until it is seen whether that was enough */
#define CREDIT_MOST_NS (500 * MS_NS)

static bool waits(const struct share *share, uint64_t now_ns)
{
    uint64_t at_ns = atomic_load(&share->waits_at_ns);
    return at_ns && now_ns - at_ns + FRESH_NS <= 2 * FRESH_NS; /* who left it may have a later time */
}

/* Whether what goes out at once is used up. */
static bool is_enough(struct lane *lane, int64_t cost_ns, uint64_t now_ns)
{
    if (elapsed_ns(atomic_load(&lane->credit_at_ns), now_ns) >= AT_ONCE_NS) {
        atomic_store(&lane->credit_at_ns, now_ns);
        atomic_store(&lane->credit_ns, AT_ONCE_NS);
    }
    return atomic_fetch_sub(&lane->credit_ns, cost_ns) <= 0;
}

bool credit_for(struct lane *lane, int64_t cost_ns, uint64_t now_ns)
{
    struct region_device *devices = region_tail(region_mapped())->devices;
    int64_t budget_ns = atomic_load(&lane->share->budget_ns);
    if (budget_ns < -CREDIT_MOST_NS || waits(lane->share, now_ns))
        return false; /* as ours wait themselves, it is another that they wait for */
    for (struct region_device *device = devices; device < devices + MAX_DEVICES; device++) {
        struct share *other = (struct share *)(void *)&device->budget_ns;
        if (!waits(other, now_ns) || atomic_load(&other->budget_ns) > budget_ns)
            continue;
        if (is_enough(lane, cost_ns, now_ns))
            return false;
        atomic_store(&other->let_out_at_ns, now_ns);
        return true;
    }
    return false;
}
