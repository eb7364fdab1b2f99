#include "leases.h"
#include "launch_gate.h"
#include "monotonic.h"
#include "region.h"

#define AGENT_LEASE_NS (1000 * MS_NS)
#define MONITOR_LEASE_NS (15000 * MS_NS)

static _Atomic uint64_t monitor_blocks_since_ns;
static struct {
    _Atomic uint64_t until_ns, seen_at_ns;
} agent_blocks[MAX_DEVICES];

/* Until when the agent blocks the device; 0: it does not. */
static uint64_t blocked_by_agent(int place, uint64_t until_ns, uint64_t now_ns)
{
    if (until_ns <= now_ns)
        return 0;
    if (atomic_exchange(&agent_blocks[place].until_ns, until_ns) != until_ns)
        atomic_store(&agent_blocks[place].seen_at_ns, now_ns);
    uint64_t most_ns = atomic_load(&agent_blocks[place].seen_at_ns) + AGENT_LEASE_NS;
    until_ns = until_ns < most_ns ? until_ns : most_ns;
    return until_ns > now_ns ? until_ns : 0;
}

/* The same for a monitor. */
static uint64_t blocked_by_monitor(uint64_t now_ns)
{
    struct region *region = region_mapped();
    int32_t recent = region ? atomic_load(&region->recent_kernel) : 0;
    uint64_t began_ns = atomic_load(&monitor_blocks_since_ns);
    if (recent >= 0) {
        if (began_ns)
            atomic_store(&monitor_blocks_since_ns, 0);
        return 0;
    }
    if (!began_ns && atomic_compare_exchange_strong(&monitor_blocks_since_ns, &began_ns, now_ns))
        began_ns = now_ns;
    if (elapsed_ns(began_ns, now_ns) < MONITOR_LEASE_NS)
        return began_ns + MONITOR_LEASE_NS;
    atomic_compare_exchange_strong(&region->recent_kernel, &recent, LAUNCH_GATE_RECENT);
    atomic_store(&monitor_blocks_since_ns, 0);
    return 0;
}

uint64_t leases_until_ns(int place, uint64_t agent_ns, uint64_t now_ns)
{
    uint64_t by_agent_ns = blocked_by_agent(place, agent_ns, now_ns);
    uint64_t by_monitor_ns = blocked_by_monitor(now_ns);
    return by_monitor_ns > by_agent_ns ? by_monitor_ns : by_agent_ns;
}
