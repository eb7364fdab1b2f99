#include "launch_wait.h"
#include "counters.h"
#include "credit.h"
#include "launch_budget.h"
#include "launch_cost.h"
#include "launch_count.h"
#include "leases.h"
#include "limits.h"
#include "monotonic.h"
#include "region.h"
#include "settings.h"

#include <time.h>

enum { FEW_LOOKS = 20, ROOM_LOOKS = 3 * FEW_LOOKS }; /* the latter take 21 ms, as others may have the GPU */

#define LATER_LOOK_NS 500000
#define FIRST_LOOK_NS 50000 /* between looks for the first measurement of a kind */
#define ASKED_MOST_NS (10 * MS_NS) /* of the time between two; more, and nobody was let look */
#define UNCERTAIN_WAIT_NS MS_NS
#define QUEUE_LENT_NS (7 * MS_NS)
#define NO_ROOM_NS (1000 * MS_NS)
#define HELD_UP_NS (2 * MS_NS) /* who wakes so late was not let run */

static _Atomic uint64_t noted_at_ns;

void launch_wait_note(struct lane *lane, uint64_t now_ns)
{
    struct region *region = region_mapped();
    uint64_t interval_ns = settings()->record_interval_s * UINT64_C(1000000000);
    launch_count_tell(lane);
    if (!region)
        return;
    int32_t recent = loose_load(&region->recent_kernel);
    if (recent != LAUNCH_GATE_RECENT && !leases_of_monitor_ns(now_ns))
        atomic_compare_exchange_strong(&region->recent_kernel, &recent,
                                       LAUNCH_GATE_RECENT); /* unless it just blocked us */
    uint64_t noted_ns = loose_load(&noted_at_ns);
    if ((!noted_ns || now_ns - noted_ns >= interval_ns)
        && atomic_compare_exchange_strong(&noted_at_ns, &noted_ns, now_ns))
        loose_store(&region->last_kernel_time_s, (uint64_t)time(NULL));
}

/* Whether launches wait in the GPU's queues, and others have it. */
static bool queues(const struct lane *lane, uint64_t now_ns)
{
    uint64_t since_ns = (uint64_t)atomic_load_explicit(&lane->queued_ns, memory_order_relaxed);
    return since_ns && elapsed_ns(since_ns, now_ns) > QUEUE_LENT_NS && share_contended(lane->share, now_ns);
}

/* What is the container's of the device's time now; SHARE_WHOLE_PERMILLE: no limit. What is lent is not
 * queued: it could not be returned. */
static uint32_t share_now(const struct core_share *core, const struct lane *lane, uint64_t now_ns)
{
    uint32_t permille = core->enforced ? core->container_permille : SHARE_WHOLE_PERMILLE;
    bool lent = core->lent_permille && leases_hold(core->lent_until_ns, now_ns);
    if (core->enforced && lent && !queues(lane, now_ns))
        permille += core->lent_permille < SHARE_WHOLE_PERMILLE ? core->lent_permille : SHARE_WHOLE_PERMILLE;
    return permille < SHARE_WHOLE_PERMILLE ? permille : SHARE_WHOLE_PERMILLE;
}

/* How long to wait for what was launched last to be known. */
static uint64_t look_again_ns(struct launch *launch)
{
    launch->looks++;
    gpu_time_read(launch->lane);
    return launch->looks > FEW_LOOKS ? LATER_LOOK_NS : FIRST_LOOK_NS;
}

/* The same for the budget to be repaid. What is being measured was charged ahead, and may turn out to have
 * cost less: that may be all the debt there is. Of what is short, it is repaid as soon as it is known. */
static uint64_t repaid_ns(struct launch *launch, uint32_t permille, int64_t cost_ns)
{
    const struct share *share = launch->lane->share, *own = &launch->lane->own;
    uint32_t own_permille = loose_load(&launch->lane->own_permille);
    uint64_t wait_ns = share_wait_ns(share, permille);
    if (own_permille && share_wait_ns(own, own_permille) > wait_ns) {
        share = own;
        wait_ns = share_wait_ns(own, own_permille);
    }
    if (!gpu_time_measuring(launch->lane) || wait_ns <= (uint64_t)UNCERTAIN_WAIT_NS)
        return wait_ns;
    if (cost_ns < ESTIMATE_LONG_NS)
        return UNCERTAIN_WAIT_NS;
    int64_t debt_ns = (int64_t)share_debt_ns(share, SHARE_WHOLE_PERMILLE);
    return debt_ns < loose_load(&launch->lane->uncertain_ns) ? look_again_ns(launch) : UNCERTAIN_WAIT_NS;
}

/* How long to wait before asking again; 0: go. */
static uint64_t ask(struct launch *launch, int place, uint64_t now_ns)
{
    struct core_share core = limits_core(place);
    uint64_t due_ns = launch->due_ns;
    launch->due_ns = 0;
    uint64_t blocked_ns = leases_until_ns(place, core.blocked_until_ns, now_ns);
    if (blocked_ns)
        return blocked_ns - now_ns < (uint64_t)SHARE_WAIT_MOST_NS ? blocked_ns - now_ns
                                                                  : (uint64_t)SHARE_WAIT_MOST_NS;
    uint32_t permille = share_now(&core, launch->lane, now_ns);
    bool lowered = core.enforced && core.permille < core.container_permille;
    launch->cost_ns = 0;
    launch_budget_keep_own(launch->lane, lowered ? core.permille : 0, now_ns);
    if (permille == SHARE_WHOLE_PERMILLE && !lowered)
        return 0;
    uint64_t asked_ns = launch->asked_at_ns ? now_ns - launch->asked_at_ns : 0;
    launch->asked_ns += asked_ns < (uint64_t)ASKED_MOST_NS ? asked_ns : (uint64_t)ASKED_MOST_NS;
    launch->asked_at_ns = 0;
    int64_t cost_ns = launch_cost_ns(launch);
    uint64_t look_ns = cost_ns ? 0 : look_again_ns(launch);
    const struct estimate *known = look_ns ? estimate_find(&gpu_time_predictor, launch->key) : NULL;
    if (look_ns && (!known || !loose_load(&known->deviation)))
        cost_ns = launch_cost_ns(launch); /* unless its kind varies: what was waited for says nothing of it */
    if (!cost_ns) {
        launch->asked_at_ns = now_ns;
        return look_ns;
    }
    if (due_ns && now_ns > due_ns + (uint64_t)HELD_UP_NS && permille < SHARE_WHOLE_PERMILLE)
        share_held_up(launch->lane->share, now_ns, now_ns - due_ns, permille);
    if (!launch_budget_take(launch, cost_ns, permille, now_ns)) {
        launch_cost_drop_guess(launch);
        uint64_t wait_ns = repaid_ns(launch, permille, cost_ns);
        if (credit_may_come(launch->lane, now_ns))
            wait_ns = SHARE_WAIT_LEAST_NS;
        launch->due_ns = now_ns + wait_ns;
        return wait_ns;
    }
    launch->cost_ns = cost_ns;
    return 0;
}

static void note_wait(struct launch *launch, int place, uint64_t ns)
{
    struct region_slot *own = region_own_slot();
    count_more(&launch->lane->share->throttled_ns, ns);
    if (own)
        count_more(&own->used[place].throttled_ns, ns);
}

void launch_wait(struct launch *launch, int place)
{
    uint64_t began_ns = monotonic_ns(), noted_ns = began_ns, now_ns = began_ns, wait_ns;
    if (launch_gate_is_captured(launch)) { /* by a capture that was not seen to begin */
        launch->lane = NULL;
        return;
    }
    launch_wait_note(launch->lane, now_ns);
    if (gpu_time_several_streams(launch->lane, now_ns))
        gpu_time_note_spent(launch->lane, now_ns, 0);
    while ((wait_ns = ask(launch, place, now_ns)) > 0) {
        monotonic_sleep_holding_nothing(now_ns + wait_ns);
        now_ns = monotonic_ns();
        if (now_ns - noted_ns >= (uint64_t)SHARE_WAIT_NOTED_NS) { /* it may last for hours */
            note_wait(launch, place, now_ns - noted_ns);
            noted_ns = now_ns;
        }
    }
    if (now_ns - began_ns >= (uint64_t)SHARE_WAIT_LEAST_NS) {
        count_more(&launch->lane->share->waits, 1);
        note_wait(launch, place, now_ns - noted_ns);
        if (gpu_time_several_streams(launch->lane, now_ns))
            gpu_time_note_spent(launch->lane, now_ns, launch->cost_ns);
    }
    bool measured = launch->cost_ns && launch_cost_is_to_be_measured(launch, now_ns);
    if (measured && launch->always && !share_contended(launch->lane->share, now_ns)) {
        gpu_time_drop_tokens(launch->lane); /* so that it is noted, too, when the others go on */
        gpu_time_note_spent(launch->lane, now_ns, 0);
    }
    bool timed = !measured && launch->cost_ns && credit_is_asked(launch->lane, now_ns);
    if (measured || timed) {
        bool alone = measured || !gpu_time_several_streams(launch->lane, now_ns);
        loose_store(&launch->lane->measured_at_ns, now_ns);
        /* What runs beside others that are measured must be, too, or these are charged for it. Where so many
         * are queued that there is no room, the GPU has enough to do meanwhile; unless it waits for what is
         * to come, as it seems to if nothing ends for long: then nobody waits for a while. */
        launch->looks = 0;
        while (!(launch->trace = gpu_time_begin(launch->lane, launch->stream, launch->per_thread,
                                                launch->guess, launch->always, !alone))
               && launch->always
               && elapsed_ns(loose_load(&launch->lane->no_room_at_ns), now_ns) > NO_ROOM_NS) {
            monotonic_sleep_until(now_ns + look_again_ns(launch));
            now_ns = monotonic_ns();
            if (launch->looks > ROOM_LOOKS)
                loose_store(&launch->lane->no_room_at_ns, now_ns);
        }
        if (launch->sweep && !launch->trace)
            launch_cost_end_sweep(launch->lane);
    }
    if (!launch->cost_ns)
        launch->lane = NULL;
}
