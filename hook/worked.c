#include "worked.h"

#define MOST_QUEUED_NS INT64_C(100000000) /* 1024 of 50 us are 51 ms; errors of estimates end with it */
#define MOST_APART_NS INT64_C(20000000) /* after which nothing is known of the time between */

static struct worked_point *point(const struct worked *worked, uint64_t number)
{
    return (struct worked_point *)&worked->points[number % WORKED_POINTS];
}

static void add_point(struct worked *worked, int64_t at_ns, int64_t own_ns)
{
    *point(worked, ++worked->last) = (struct worked_point){.at_ns = at_ns, .own_ns = own_ns};
}

/* Work it off, from the newest point on. */
static void work(struct worked *worked, const struct past *past, int64_t until_ns, int64_t charged_ns,
                 int streams)
{
    struct worked_point newest = *point(worked, worked->last);
    while (newest.at_ns < until_ns) {
        int64_t edge_ns = until_ns;
        int always = past_always_at(past, newest.at_ns, &edge_ns);
        int others = streams > always ? streams - always : 1;
        int64_t took_ns = edge_ns - newest.at_ns;
        int64_t came_ns = (int64_t)((double)charged_ns * (double)took_ns / (double)(until_ns - newest.at_ns));
        charged_ns -= came_ns;
        worked->queued_ns += came_ns;
        int64_t away_ns = worked->away_ns < took_ns ? worked->away_ns : took_ns;
        worked->away_ns -= away_ns;
        int64_t most_ns = (took_ns - away_ns) * others / (always + others);
        int64_t did_ns = worked->queued_ns < most_ns ? worked->queued_ns : most_ns;
        did_ns = did_ns > 0 ? did_ns : 0;
        worked->queued_ns -= did_ns;
        add_point(worked, edge_ns, newest.own_ns + (always ? (took_ns - did_ns) / always : 0));
        newest = *point(worked, worked->last);
    }
}

void worked_charged(struct worked *worked, const struct past *past, int64_t at_ns, int64_t charged_ns,
                    int streams)
{
    const struct worked_point *newest = point(worked, worked->last);
    int64_t took_ns = at_ns - newest->at_ns;
    int64_t came_ns = charged_ns - worked->charged_ns;
    worked->charged_ns = charged_ns;
    if (worked->last && took_ns < WORKED_APART_NS) {
        worked->queued_ns += came_ns;
        return;
    }
    if (worked->last && took_ns - worked->away_ns <= MOST_APART_NS) {
        work(worked, past, at_ns, came_ns, streams);
        worked->queued_ns = worked->queued_ns < MOST_QUEUED_NS ? worked->queued_ns : MOST_QUEUED_NS;
        worked->queued_ns =
            worked->queued_ns > 0 ? worked->queued_ns : 0; /* a long one's was taken for theirs */
    } else {
        worked->queued_ns = worked->away_ns = 0;
        add_point(worked, at_ns, newest->own_ns + took_ns);
    }
}

int64_t worked_own_ns(const struct worked *worked, int64_t at_ns)
{
    uint64_t number = worked->last;
    if (!number)
        return -1;
    const struct worked_point *after = point(worked, number);
    if (at_ns >= after->at_ns) /* long after, it is not known yet */
        return at_ns <= after->at_ns + WORKED_APART_NS ? after->own_ns : -1;
    for (; number > 1 && number + WORKED_POINTS - 1 > worked->last; number--) {
        const struct worked_point *before = point(worked, number - 1);
        if (before->at_ns <= at_ns)
            return before->own_ns
                + (after->own_ns - before->own_ns) * (at_ns - before->at_ns) / (after->at_ns - before->at_ns);
        after = before;
    }
    return -1;
}
