#include "beside.h"

#include <stddef.h>

#define KEPT 0.92 /* of what is known, at each sweep: few launches of a kind that varies are in one */

static double weight(const struct beside_stream *of)
{
    return of->most_ns;
}

/* Its place, or NULL. */
static const struct beside_stream *known_place(const struct beside *beside, uint64_t stream)
{
    for (const struct beside_stream *of = beside->of; of < beside->of + BESIDE_STREAMS; of++)
        if (weight(of) > 0 && of->stream == stream)
            return of;
    return NULL;
}

/* The same; otherwise that of the one that had least lately. */
static struct beside_stream *place_of(struct beside *beside, uint64_t stream)
{
    struct beside_stream *of = (struct beside_stream *)known_place(beside, stream);
    if (of)
        return of;
    of = beside->of;
    for (size_t i = 1; i < BESIDE_STREAMS; i++)
        if (weight(&beside->of[i]) < weight(of))
            of = &beside->of[i];
    *of = (struct beside_stream){.stream = stream};
    return of;
}

/* What ran over an edge of the window: that is where a launch of another stream began or ended, so more ran
 * beside it there than elsewhere. What is long seldom fits into the window, and is told all the same. */
static bool is_cut(const struct past_run *run, int64_t from_ns, int64_t until_ns)
{
    return (run->from_ns < from_ns || run->until_ns > until_ns)
        && run->until_ns - run->from_ns < (until_ns - from_ns) / 2;
}

/* Until when it is known what ran, where nothing was launched after what was measured. */
static int64_t last_end_ns(const struct past *past)
{
    int64_t last_ns = 0;
    for (size_t i = 0; i < PAST_RUNS; i++)
        if (past->runs[i].until_ns != INT64_MAX && past->runs[i].until_ns > last_ns)
            last_ns = past->runs[i].until_ns;
    return last_ns;
}

void beside_learn(struct beside *beside, const struct past *past, int64_t from_ns, int64_t until_ns)
{
    if (until_ns == INT64_MAX)
        until_ns = last_end_ns(past);
    for (size_t i = 0; i < BESIDE_STREAMS; i++) {
        beside->of[i].part_ns *= KEPT;
        beside->of[i].most_ns *= KEPT;
    }
    for (size_t i = 0; i < PAST_RUNS; i++) {
        const struct past_run *run = &past->runs[i];
        int64_t began_ns = run->from_ns > from_ns ? run->from_ns : from_ns;
        int64_t ended_ns = run->until_ns < until_ns ? run->until_ns : until_ns;
        if (!run->number || !run->always || began_ns >= ended_ns || is_cut(run, from_ns, until_ns))
            continue;
        struct beside_stream *of = place_of(beside, run->stream);
        of->part_ns += (double)past_part_ns(past, run->stream, began_ns, ended_ns);
        of->most_ns += (double)past_part_of_always_ns(past, run->stream, began_ns, ended_ns);
    }
}

double beside_part(const struct beside *beside, uint64_t stream)
{
    const struct beside_stream *of = known_place(beside, stream);
    return of && of->most_ns > 0 ? of->part_ns / of->most_ns : 0;
}
