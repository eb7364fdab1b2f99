#include "launch_budget.h"
#include "counters.h"
#include "credit.h"
#include "monotonic.h"

enum { ABOUT = 2 };

#define STUCK_NS (5000 * MS_NS) /* between launches that are let out to somebody who may wait for them */
#define OVERLONG_NS (1000 * MS_NS) /* for so long after it was last seen */

/* By a budget that only it takes from: that of the container grows by the container's share whoever looks, or
 * the others would have less, too. What is lent to the container raises nothing here. */
void launch_budget_keep_own(struct lane *lane, uint32_t permille, uint64_t now_ns)
{
    struct share *own = &lane->own;
    if (!permille && atomic_exchange(&lane->own_permille, 0)) {
        atomic_store(&own->refilled_at_ns, 0);
        atomic_store(&own->budget_ns, 0);
    }
    if (!permille)
        return;
    atomic_store(&lane->own_permille, permille);
    loose_store(&own->contended_at_ns, loose_load(&lane->share->contended_at_ns));
    loose_store(&own->caught_up_at_ns, loose_load(&lane->share->caught_up_at_ns));
    share_refill(own, now_ns, permille);
}

/* Chunks of different sizes: what is measured at their ends is in step with nothing the program does. */
static int64_t chunk(uint64_t now_ns)
{
    return SHARE_CHUNK_NS / 2 + (int64_t)(estimate_mix(now_ns, 1) % (uint64_t)(SHARE_CHUNK_NS / 2));
}

/* Whether the GPU takes turns with others, or our own contexts: in a sweep chunks would let one have more of
 * what is seen of them. Otherwise launches are to come in it as they always do. */
static bool in_turn(const struct lane *lane, uint64_t now_ns)
{
    return share_contended(lane->share, now_ns) || gpu_time_several_contexts(lane);
}

/* A launch of the container has run for so much longer than it should that what it waits for may be what
 * waits here. One more of each process goes out now and then. */
static bool stuck(struct lane *lane, uint64_t now_ns)
{
    return elapsed_ns(loose_load(&lane->launched_at_ns), now_ns) > STUCK_NS
        && now_ns - loose_load(&lane->share->overlong_at_ns) < (uint64_t)OVERLONG_NS;
}

/* Whether to leave the budget to another thread of the process. Not for a launch that is about as short as
 * those of who has had less: as each takes what is there when it looks, neither keeps the other from it. Of
 * long ones each takes more than there is, and who looks first at the end of a debt would have it each time.
 */
static bool is_another_threads(struct lane *lane, const struct share *share, struct turn *turn,
                               int64_t cost_ns, uint64_t now_ns, uint32_t permille)
{
    return share_is_anothers_turn(share, &lane->threads.least_had, turn, now_ns, permille)
        && (cost_ns / ABOUT > loose_load(&lane->threads.least_cost_ns) || cost_ns > SHARE_WAIT_MOST_NS);
}

static void tell_threads(struct lane *lane, const struct share *share, struct turn *turn, int64_t cost_ns,
                         uint64_t now_ns, uint32_t permille)
{
    share_tell_turn(share, &lane->threads.least_had, turn, now_ns, permille);
    if (loose_load(&lane->threads.least_had) == loose_load(&turn->told))
        loose_store(&lane->threads.least_cost_ns, cost_ns);
}

bool launch_budget_take(struct launch *launch, int64_t cost_ns, uint32_t permille, uint64_t now_ns)
{
    struct lane *lane = launch->lane;
    struct turn *turn = gpu_time_own_turn(lane, now_ns), *payer = atomic_load(&lane->payer);
    if (launch_budget_spend(lane, cost_ns)) {
        if (payer) {
            atomic_fetch_sub(&payer->had_ns, (uint64_t)cost_ns);
            count_more(&turn->had_ns, (uint64_t)cost_ns);
        }
        return true;
    }
    share_refill(lane->share, now_ns, permille);
    bool sweeping = loose_load(&lane->sweep_left) > 0;
    int64_t chunk_ns = sweeping && in_turn(lane, now_ns) ? cost_ns : chunk(now_ns);
    uint32_t own_permille = loose_load(&lane->own_permille);
    uint32_t its_permille = own_permille ? own_permille : permille;
    struct share *own = own_permille ? &lane->own : lane->share;
    bool wants = loose_load(&own->budget_ns) > 0 || !own_permille; /* or it could not use its turn */
    bool yields = is_another_threads(lane, own, turn, cost_ns, now_ns, its_permille);
    yields |=
        wants && share_is_anothers_turn(lane->share, &lane->share->least_had, &lane->turn, now_ns, permille);
    if (own_permille)
        chunk_ns = yields ? 0 : share_take(own, cost_ns, chunk_ns);
    int64_t taken_ns = yields || !chunk_ns ? 0 : share_take(lane->share, cost_ns, chunk_ns);
    launch->on_credit = !taken_ns && credit_for(lane, cost_ns, now_ns);
    if (!taken_ns && (launch->on_credit || stuck(lane, now_ns))) {
        share_correct(lane->share, cost_ns);
        taken_ns = cost_ns;
    }
    if (own_permille)
        share_correct(own, taken_ns - chunk_ns);
    count_more(&lane->turn.had_ns, (uint64_t)taken_ns);
    count_more(&turn->had_ns, (uint64_t)taken_ns);
    if (wants)
        share_tell_turn(lane->share, &lane->share->least_had, &lane->turn, now_ns, permille);
    tell_threads(lane, own, turn, cost_ns, now_ns, its_permille);
    if (!taken_ns)
        return false;
    atomic_store(&lane->payer, turn);
    atomic_fetch_add(&lane->granted_ns, taken_ns);
    atomic_fetch_add(&lane->tokens_ns, taken_ns - cost_ns);
    atomic_fetch_add(&lane->unreported_ns, taken_ns);
    count_more_ns(&lane->unswept_ns, taken_ns);
    loose_store(&lane->launched_at_ns, now_ns);
    if (!sweeping && !loose_load(&lane->went_on_at_ns))
        loose_store(&lane->went_on_at_ns, now_ns);
    return true;
}
