#include "residency.h"

#define UNSEEN_NS 5000000 /* without a look, while something runs: nobody was let look */
#define UNLOOKED_NS 1000000 /* and more: what began with that ended in it */
#define ROUNDED_NS 1000 /* times of events that are the same may differ by as much */
#define OUTSIDE_NS 2000000 /* looks are never so far apart while something runs */

void residency_look(struct residency *residency, int64_t now_ns, int running)
{
    uint64_t i = residency->count++ % RESIDENCY_LOOKS;
    residency->looks[i].at_ns = now_ns;
    residency->looks[i].away = 0;
    residency->looks[i].running = running > 1 ? running : 1;
    if (residency->undecided < RESIDENCY_LOOKS)
        residency->undecided++;
}

bool residency_handled(struct residency *residency, int64_t at_ns, int64_t patience_ns)
{
    bool ever = false;
    for (; residency->undecided; residency->undecided--) {
        uint64_t i = (residency->count - residency->undecided) % RESIDENCY_LOOKS;
        int64_t delay_ns = at_ns - residency->looks[i].at_ns;
        if (ever) /* what was away for sure came back at that time */
            residency->looks[i].away = delay_ns > 0;
        else
            residency->looks[i].away =
                (delay_ns > patience_ns) + (delay_ns > patience_ns && delay_ns <= 2 * patience_ns);
        residency->looks[i].back_ns = at_ns;
        ever |= residency->looks[i].away > 0;
    }
    return ever;
}

int64_t residency_away_ns(const struct residency *residency, int64_t from_ns, int64_t until_ns, bool part)
{
    uint64_t known = residency->count < RESIDENCY_LOOKS ? residency->count : RESIDENCY_LOOKS;
    int64_t away_ns = 0, after_ns = 0; /* of the look after the one we are at */
    for (uint64_t back = 1; back < known; back++) {
        uint64_t i = (residency->count - back) % RESIDENCY_LOOKS;
        int64_t at_ns = residency->looks[i].at_ns;
        int64_t before_ns = residency->looks[(residency->count - back - 1) % RESIDENCY_LOOKS].at_ns;
        if (at_ns <= from_ns)
            return away_ns;
        /* The time it stands for, though it may lie outside: on average that is right, also for a time so
         * short that there is seldom a look in it. But nobody looks while nothing runs. */
        before_ns = before_ns < from_ns - OUTSIDE_NS ? from_ns - OUTSIDE_NS : before_ns;
        if (back == 1) {
            bool told = residency->next_ns > at_ns && residency->next_ns < at_ns + UNSEEN_NS;
            after_ns = 2 * at_ns - before_ns;
            if (told && (!residency->next_later || residency->next_ns > after_ns))
                after_ns = residency->next_ns;
        }
        after_ns = after_ns > until_ns + OUTSIDE_NS ? until_ns + OUTSIDE_NS : after_ns;
        /* A turn of others that ends is followed by the rest of what it cut. */
        if (at_ns < until_ns && residency->looks[i].away
            && residency->looks[i].back_ns <= until_ns + ROUNDED_NS)
            away_ns += residency->looks[i].away * (after_ns - before_ns)
                / (part ? 2 * residency->looks[i].running : 2);
        after_ns = at_ns;
    }
    /* What is too long ago is taken to have been like the rest. */
    return after_ns > from_ns && after_ns < until_ns && known == RESIDENCY_LOOKS
        ? (int64_t)((double)away_ns / (double)(until_ns - after_ns) * (double)(until_ns - from_ns))
        : away_ns;
}

bool residency_unseen(const struct residency *residency, int64_t launched_ns, int64_t from_ns,
                      int64_t until_ns, int64_t now_ns)
{
    int64_t at_ns = now_ns, after_ns;
    for (uint64_t back = 1; back <= RESIDENCY_LOOKS && at_ns > from_ns; back++) {
        after_ns = at_ns;
        at_ns = residency->looks[(residency->count - back) % RESIDENCY_LOOKS].at_ns;
        if (at_ns < after_ns - UNSEEN_NS && at_ns < until_ns - UNLOOKED_NS)
            return launched_ns < at_ns + OUTSIDE_NS;
    }
    return false;
}

int64_t residency_back_ns(const struct residency *residency, int64_t from_ns, int64_t until_ns)
{
    uint64_t known = residency->count < RESIDENCY_LOOKS ? residency->count : RESIDENCY_LOOKS;
    for (uint64_t back = 1 + residency->undecided; back <= known; back++) {
        uint64_t i = (residency->count - back) % RESIDENCY_LOOKS;
        if (residency->looks[i].at_ns <= from_ns)
            return 0;
        if (residency->looks[i].away && residency->looks[i].back_ns < until_ns)
            return residency->looks[i].back_ns;
    }
    return 0;
}
