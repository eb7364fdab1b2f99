#include "past.h"

#include <stddef.h>

enum { MOST_BESIDE = 256 };

struct edge {
    int64_t at_ns;
    int change; /* in how many run */
};

uint64_t past_began(struct past *past, uint64_t stream, int64_t from_ns)
{
    uint64_t number = ++past->last;
    past->runs[number % PAST_RUNS] = (struct past_run){number, stream, from_ns, INT64_MAX};
    return number;
}

void past_ended(struct past *past, uint64_t number, int64_t from_ns, int64_t until_ns)
{
    struct past_run *run = &past->runs[number % PAST_RUNS];
    if (run->number != number)
        return;
    run->from_ns = from_ns;
    run->until_ns = until_ns;
}

static size_t insert(struct edge *edges, size_t count, int64_t at_ns, int change)
{
    size_t i = count;
    for (; i > 0 && edges[i - 1].at_ns > at_ns; i--)
        edges[i] = edges[i - 1];
    edges[i] = (struct edge){at_ns, change};
    return count + 1;
}

int64_t past_part_ns(const struct past *past, uint64_t stream, int64_t from_ns, int64_t until_ns)
{
    struct edge edges[2 * MOST_BESIDE];
    size_t count = 0;
    int64_t at_ns = from_ns;
    int running = 1;
    for (size_t i = 0; i < PAST_RUNS && count + 2 <= 2 * MOST_BESIDE; i++) {
        const struct past_run *run = &past->runs[i];
        if (!run->number || run->stream == stream || run->from_ns >= run->until_ns || run->from_ns >= until_ns
            || run->until_ns <= from_ns)
            continue;
        if (run->from_ns <= from_ns)
            running++;
        else
            count = insert(edges, count, run->from_ns, 1);
        if (run->until_ns < until_ns)
            count = insert(edges, count, run->until_ns, -1);
    }
    double part_ns = 0;
    for (size_t i = 0; i < count; i++) {
        part_ns += (double)(edges[i].at_ns - at_ns) / running;
        at_ns = edges[i].at_ns;
        running += edges[i].change;
    }
    return (int64_t)(part_ns + (double)(until_ns - at_ns) / running);
}
