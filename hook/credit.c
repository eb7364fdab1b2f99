#include "credit.h"
#include "gpu_traces.h"
#include "region.h"
#include "region_file.h"

#define FRESH_NS (UINT64_C(3) * MS_NS) /* who waits says so every millisecond */
#define LET_OUT_NS MS_NS /* that goes out, until it is seen whether that was enough */
#define DEEP_NS (100 * MS_NS)
#define HELD_NS (UINT64_C(50) * MS_NS) /* who was held for so long is let out without a proof */
#define TOGETHER_NS UINT64_C(20000) /* what ends with something on another GPU does so to this */

/* What each that does so counts, as one that does not takes one off: by chance, few do. */
enum { MET = 3, MET_ENOUGH = 3, MET_MOST = 32 }; /* and a little more */

static bool waits(const struct share *share, uint64_t now_ns)
{
    uint64_t at_ns = loose_load(&share->waits_at_ns);
    return at_ns && now_ns - at_ns + FRESH_NS <= 2 * FRESH_NS; /* who left it may have a later time */
}

/* As much, and where that is deep by a third more: what is let out may be long itself. */
static bool owes_more(const struct share *share, int64_t budget_ns)
{
    int64_t other_ns = loose_load(&share->budget_ns);
    return budget_ns < -DEEP_NS ? other_ns / 4 <= budget_ns / 3 : other_ns <= budget_ns;
}

static bool meets(const struct share *share)
{
    return loose_load(&share->met) >= MET_ENOUGH;
}

static void note_met(struct share *share, int64_t by)
{
    int64_t met = loose_load(&share->met);
    met = (met < 0 || met > MET_MOST ? 0 : met) + by;
    loose_store(&share->met, met > 0 ? met : 0);
}

static bool together(const _Atomic uint64_t *one_ns, uint64_t other_ns)
{
    return atomic_load(one_ns) - other_ns + TOGETHER_NS <= 2 * TOGETHER_NS;
}

/* Which of two ends is seen first is chance. Of two that both ran for longer than expected the one that began
 * later waited for nothing, and neither did if they began together: kernels of the same length do, in step.
 */
bool credit_ended(struct lane *lane, uint64_t since_ns, uint64_t until_ns, bool waited)
{
    struct region_device *device = region_tail(region_mapped())->devices;
    bool met = false;
    atomic_store(&lane->share->ended_at_ns[lane->ends++ % SHARE_ENDS], until_ns);
    for (const struct region_device *end = device + MAX_DEVICES; device < end; device++) {
        struct share *other = (struct share *)(void *)&device->budget_ns;
        if (other == lane->share)
            continue;
        bool both = together(&other->waited_until_ns, until_ns);
        int64_t later_ns = both ? (int64_t)(since_ns - loose_load(&other->waited_since_ns)) : -MS_NS;
        for (int i = 0; i < SHARE_ENDS; i++)
            met |= later_ns <= -MS_NS && together(&other->ended_at_ns[i], until_ns);
        if (later_ns >= MS_NS) {
            loose_store(&other->waited_until_ns, 0);
            note_met(other, MET + 1);
        }
    }
    if (!waited)
        return false;
    note_met(lane->share, met ? MET : -1);
    loose_store(&lane->share->waited_since_ns, since_ns);
    atomic_store(&lane->share->waited_until_ns, met ? 0 : until_ns);
    loose_store(&lane->share->waits_at_ns, 0);
    return met;
}

/* Whether one of ours waits; and whether what was let out has not ended yet. */
static bool is_waiting(struct lane *lane, bool *let_out)
{
    bool waiting = false;
    for (struct trace *trace = NULL; (trace = trace_next(traces_of(lane), trace));)
        if (!atomic_load_explicit(&trace->ended, memory_order_relaxed)) {
            waiting |= trace->waits;
            *let_out |= trace->on_credit;
        }
    return waiting;
}

bool credit_is_asked(const struct lane *lane, uint64_t now_ns)
{
    const struct region_device *device = region_tail(region_mapped())->devices;
    bool asked = false;
    for (const struct region_device *end = device + MAX_DEVICES; device < end && !asked; device++) {
        const struct share *other = (const struct share *)(const void *)&device->budget_ns;
        asked = other != lane->share && waits(other, now_ns);
    }
    return asked;
}

/* Where one of the container waits here as well, both may wait for ever for what neither is let launch: then
 * it is not asked who owes more. The GPU works anyway. */
bool credit_for(struct lane *lane, int64_t cost_ns, uint64_t now_ns)
{
    struct region_device *device = region_tail(region_mapped())->devices;
    int64_t budget_ns = loose_load(&lane->share->budget_ns);
    bool mutual = waits(lane->share, now_ns), let_out = false;
    bool proved = meets(lane->share) || (mutual && now_ns - loose_load(&lane->launched_at_ns) > HELD_NS);
    for (const struct region_device *end = device + MAX_DEVICES; device < end; device++) {
        struct share *other = (struct share *)(void *)&device->budget_ns;
        if (other == lane->share || !waits(other, now_ns) || !(proved || meets(other))
            || !(mutual || owes_more(other, budget_ns)))
            continue;
        if (is_waiting(lane, &let_out))
            return false; /* it is another that those wait for */
        loose_store(&other->let_out_at_ns, now_ns);
        /* What went out is over, and was not enough: it waits since then. */
        if (!let_out && loose_load(&other->waits_at_ns) > loose_load(&lane->credit_ended_ns))
            loose_store(&lane->credit_ns, LET_OUT_NS);
        loose_store(&lane->credit_at_ns, now_ns);
        return atomic_fetch_sub(&lane->credit_ns, cost_ns) > 0;
    }
    return false;
}
