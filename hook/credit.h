/* Launches on several GPUs of a container that wait for each other, as collectives do (NCCL).
 *
 * Each GPU has a budget of its own, and what waits on one for its counterpart on another works there, and is
 * charged. So who has more goes first, waits, and has less then, by more than it had more: below half of each
 * GPU that difference grows each time. Therefore a GPU for which a launch on another waits spends on credit
 * as long as it owes no more than that one. Both owe as much then, come due together, and have nothing to
 * wait for. What is owed is paid: over time each has its share and no more.
 *
 * A launch that is only long is told from one that waits by its end: that one ends with what it waited for.
 *
 * Told by words of the region, so between processes, too. Thread and process safe.
 */
#ifndef VGPU_CREDIT_H
#define VGPU_CREDIT_H

#include "gpu_time.h"

#define CREDIT_LATELY_NS (1000 * MS_NS)

/* A launch of ours has run for so much longer than expected that it may wait for one on another GPU. */
static inline void credit_ask(struct lane *lane, int64_t now_ns)
{
    loose_store(&lane->share->waits_at_ns, (uint64_t)now_ns);
}

#define CREDIT_SEEN_NS (3 * MS_NS) /* after it ended, another process has looked, too */

/* One has run from then till then, which may have waited so. Whether one on another GPU, that began later,
 * was seen to end with it; where that is seen later, until CREDIT_SEEN_NS, credit_was_met says so. */
bool credit_ended(struct lane *lane, uint64_t since_ns, uint64_t until_ns, bool waited);

static inline bool credit_was_met(const struct lane *lane)
{
    return !atomic_load(&lane->share->waited_until_ns);
}

/* Whether another GPU's was let out, or held, while one of ours waited that runs since then. */
static inline bool credit_was_given(struct lane *lane, int64_t since_ns)
{
    return (int64_t)atomic_load(&lane->share->let_out_at_ns) > since_ns;
}

/* Whether one on another GPU may wait for what is launched here now. */
bool credit_is_asked(const struct lane *lane, uint64_t now_ns);

/* Whether a launch of `cost_ns` goes out although the budget is spent. */
bool credit_for(struct lane *lane, int64_t cost_ns, uint64_t now_ns);

/* Whether to ask for that again soon. */
static inline bool credit_may_come(const struct lane *lane, uint64_t now_ns)
{
    return now_ns - loose_load(&lane->credit_at_ns) <= (uint64_t)CREDIT_LATELY_NS;
}

#endif
