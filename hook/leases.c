#include "leases.h"
#include "monotonic.h"
#include "region.h"
#include "region_file.h"

#define AGENT_LEASE_NS (1000 * MS_NS)
#define MONITOR_LEASE_NS (UINT64_C(7000) * MS_NS) /* a round, and what listing the node's pods may take */

enum { ASKED = 1 };

static struct {
    _Atomic uint64_t until_ns, seen_at_ns;
} agent_blocks[MAX_DEVICES];

/* Until when the agent blocks the device; 0: it does not. */
static uint64_t blocked_by_agent(int place, uint64_t until_ns, uint64_t now_ns)
{
    if (!leases_hold(until_ns, now_ns))
        return 0;
    if (atomic_exchange(&agent_blocks[place].until_ns, until_ns) != until_ns)
        loose_store(&agent_blocks[place].seen_at_ns, now_ns);
    uint64_t most_ns = loose_load(&agent_blocks[place].seen_at_ns) + AGENT_LEASE_NS;
    until_ns = until_ns < most_ns ? until_ns : most_ns;
    return until_ns > now_ns ? until_ns : 0;
}

/* Leave the word for the monitor to answer. The later time counts: who was held up must not shorten what
 * others have asked since. One from the future is nobody's. */
static void ask_monitor(struct region *region, _Atomic uint64_t *asked_at_ns, uint64_t now_ns)
{
    uint64_t asked_ns = atomic_load(asked_at_ns);
    while (asked_ns - now_ns > MONITOR_LEASE_NS
           && !atomic_compare_exchange_weak(asked_at_ns, &asked_ns, now_ns)) { }
    int32_t blocked = atomic_load(&region->recent_kernel);
    if (blocked < 0)
        atomic_compare_exchange_strong(&region->recent_kernel, &blocked, ASKED);
}

uint64_t leases_of_monitor_ns(uint64_t now_ns)
{
    struct region *region = region_mapped();
    if (!region)
        return 0;
    _Atomic uint64_t *asked_at_ns = &region_tail(region)->asked_at_ns;
    uint64_t asked_ns = atomic_load(asked_at_ns); /* before the word: what is taken back below is older */
    int32_t recent = atomic_load(&region->recent_kernel);
    if (recent == 0 && asked_ns) { /* a monitor counts everybody down before it judges anybody */
        monotonic_sleep_until(now_ns + MS_NS);
        recent = atomic_load(&region->recent_kernel);
    }
    if (recent < 0) {
        ask_monitor(region, asked_at_ns, now_ns);
        return now_ns + MONITOR_LEASE_NS;
    }
    if (!asked_ns)
        return 0;
    uint64_t until_ns = asked_ns + MONITOR_LEASE_NS;
    if (recent == ASKED && until_ns > now_ns && until_ns - now_ns <= 2 * MONITOR_LEASE_NS)
        return until_ns;
    atomic_compare_exchange_strong(asked_at_ns, &asked_ns, 0); /* unless somebody has asked anew */
    return 0;
}

uint64_t leases_until_ns(int place, uint64_t agent_ns, uint64_t now_ns)
{
    uint64_t by_agent_ns = blocked_by_agent(place, agent_ns, now_ns);
    uint64_t by_monitor_ns = leases_of_monitor_ns(now_ns);
    return by_monitor_ns > by_agent_ns ? by_monitor_ns : by_agent_ns;
}
