#include "past.h"

#include <stddef.h>

enum { MOST_BESIDE = 384 };

/* When one begins or ends, with the kind in the lowest bit: the program's threads have small stacks. */
typedef int64_t edge;
#define EDGE(at_ns, begins) ((at_ns) * 2 + (begins))
#define EDGE_AT_NS(edge) ((edge) >> 1)
#define EDGE_CHANGE(edge) ((edge) & 1 ? 1 : -1) /* in how many run */

uint64_t past_began(struct past *past, uint64_t stream, int64_t from_ns)
{
    uint64_t number = ++past->last;
    past->runs[number % PAST_RUNS] =
        (struct past_run){.number = number, .stream = stream, .from_ns = from_ns, .until_ns = INT64_MAX};
    return number;
}

void past_launched(struct past *past, uint64_t number, int64_t call, int64_t cost_ns, bool always)
{
    struct past_run *run = &past->runs[number % PAST_RUNS];
    run->call = call;
    run->cost_ns = cost_ns;
    run->always = always;
}

int64_t past_others_ns(const struct past *past, uint64_t number, int64_t from_call, int64_t until_call)
{
    const struct past_run *its = &past->runs[number % PAST_RUNS];
    int64_t others_ns = 0;
    for (size_t i = 0; i < PAST_RUNS && its->number == number; i++) {
        const struct past_run *run = &past->runs[i];
        if (run != its && run->number && run->stream == its->stream && run->call > from_call
            && run->call < until_call)
            others_ns += run->cost_ns;
    }
    return others_ns;
}

/* Whether it runs, and an earlier one of its stream does, beside which it counts as one. */
static bool runs_behind(const struct past *past, const struct past_run *run)
{
    for (size_t i = 0; run->until_ns == INT64_MAX && i < PAST_RUNS; i++) {
        const struct past_run *other = &past->runs[i];
        if (other->number && other->stream == run->stream && other->until_ns == INT64_MAX
            && (other->from_ns < run->from_ns
                || (other->from_ns == run->from_ns && other->number < run->number)))
            return true;
    }
    return false;
}

static bool beside(uint64_t stream, uint64_t other)
{
    return stream != other
        && (past_context(stream) == past_context(other) || past_context(other) == PAST_ANY_CONTEXT);
}

static size_t insert(edge *edges, size_t count, edge new)
{
    size_t i = count;
    for (; i > 0 && edges[i - 1] > new; i--)
        edges[i] = edges[i - 1];
    edges[i] = new;
    return count + 1;
}

static int64_t part_ns(const struct past *past, uint64_t stream, int64_t from_ns, int64_t until_ns,
                       bool of_always)
{
    edge edges[2 * MOST_BESIDE];
    size_t count = 0;
    int64_t at_ns = from_ns;
    int running = 1;
    for (size_t i = 0; i < PAST_RUNS && count + 2 <= 2 * MOST_BESIDE; i++) {
        const struct past_run *run = &past->runs[i];
        if (!run->number || (of_always && !run->always) || !beside(stream, run->stream)
            || run->from_ns >= run->until_ns || run->from_ns >= until_ns || run->until_ns <= from_ns
            || runs_behind(past, run))
            continue;
        if (run->from_ns <= from_ns)
            running++;
        else
            count = insert(edges, count, EDGE(run->from_ns, 1));
        if (run->until_ns < until_ns)
            count = insert(edges, count, EDGE(run->until_ns, 0));
    }
    double part = 0;
    for (size_t i = 0; i < count; i++) {
        part += (double)(EDGE_AT_NS(edges[i]) - at_ns) / running;
        at_ns = EDGE_AT_NS(edges[i]);
        running += EDGE_CHANGE(edges[i]);
    }
    return (int64_t)(part + (double)(until_ns - at_ns) / running);
}

int64_t past_elsewhere_ns(const struct past *past, uint64_t stream, int64_t from_ns, int64_t until_ns)
{
    int64_t ended_ns = from_ns;
    for (size_t i = 0; i < PAST_RUNS; i++) {
        const struct past_run *run = &past->runs[i];
        if (run->number && past_context(run->stream) != past_context(stream) && run->until_ns > ended_ns
            && run->until_ns < until_ns)
            ended_ns = run->until_ns;
    }
    for (size_t i = 0; i < PAST_RUNS; i++) {
        const struct past_run *run = &past->runs[i];
        if (run->number && beside(stream, run->stream) && run->until_ns > from_ns && run->until_ns < ended_ns)
            return from_ns;
    }
    return ended_ns;
}

int64_t past_part_ns(const struct past *past, uint64_t stream, int64_t from_ns, int64_t until_ns)
{
    return part_ns(past, stream, from_ns, until_ns, false);
}

int64_t past_part_of_always_ns(const struct past *past, uint64_t stream, int64_t from_ns, int64_t until_ns)
{
    return part_ns(past, stream, from_ns, until_ns, true);
}

int past_always_at(const struct past *past, int64_t at_ns, int64_t *until_ns)
{
    int running = 0;
    for (size_t i = 0; i < PAST_RUNS; i++) {
        const struct past_run *run = &past->runs[i];
        if (!run->number || !run->always || run->until_ns <= at_ns || run->from_ns >= run->until_ns)
            continue;
        int64_t edge_ns = run->from_ns > at_ns ? run->from_ns : run->until_ns;
        running += run->from_ns <= at_ns && !runs_behind(past, run);
        *until_ns = edge_ns < *until_ns ? edge_ns : *until_ns;
    }
    return running;
}

/* The launches of several threads in one stream are each seen from before another's until behind it. What one
 * of them is seen to have is not another's: together they have what the stream had. */
static void set_apart(struct past *past, struct past_run *run)
{
    for (size_t i = 0; i < PAST_RUNS; i++) {
        struct past_run *other = &past->runs[i];
        if (other == run || !other->number || other->stream != run->stream || other->until_ns == INT64_MAX
            || other->from_ns >= run->until_ns || other->until_ns <= run->from_ns)
            continue;
        if (other->from_ns <= run->from_ns)
            run->from_ns = other->until_ns < run->until_ns ? other->until_ns : run->until_ns;
        else if (other->until_ns >= run->until_ns)
            run->until_ns = other->from_ns;
        else {
            if (other->asked)
                run->held_ns += past_part_ns(past, other->stream, other->from_ns, other->until_ns);
            other->until_ns = other->from_ns;
        }
    }
}

void past_ended(struct past *past, uint64_t number, int64_t from_ns, int64_t until_ns)
{
    struct past_run *run = &past->runs[number % PAST_RUNS];
    if (run->number != number)
        return;
    run->from_ns = from_ns;
    run->until_ns = until_ns;
    set_apart(past, run);
}

int64_t past_had_ns(struct past *past, uint64_t number, int64_t from_ns, int64_t until_ns,
                    int64_t forgotten_ns)
{
    struct past_run *run = &past->runs[number % PAST_RUNS];
    if (run->number != number)
        return forgotten_ns;
    run->asked = true;
    from_ns = from_ns > run->from_ns ? from_ns : run->from_ns;
    until_ns = until_ns < run->until_ns ? until_ns : run->until_ns;
    return (until_ns > from_ns ? past_part_ns(past, run->stream, from_ns, until_ns) : 0) - run->held_ns;
}
