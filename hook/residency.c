#include "residency.h"

void residency_look(struct residency *residency, int64_t now_ns)
{
    uint64_t i = residency->count++ % RESIDENCY_LOOKS;
    residency->looks[i].at_ns = now_ns;
    residency->looks[i].away = false;
    if (residency->undecided < RESIDENCY_LOOKS)
        residency->undecided++;
}

bool residency_handled(struct residency *residency, int64_t at_ns, int64_t patience_ns)
{
    bool ever = false;
    for (; residency->undecided; residency->undecided--) {
        uint64_t i = (residency->count - residency->undecided) % RESIDENCY_LOOKS;
        int64_t latency_ns = ever ? 0 : patience_ns; /* what was away for sure came back at that time */
        residency->looks[i].away = residency->looks[i].at_ns + latency_ns < at_ns;
        ever |= residency->looks[i].away;
    }
    return ever;
}

int64_t residency_away_ns(const struct residency *residency, int64_t from_ns, int64_t until_ns)
{
    uint64_t known = residency->count < RESIDENCY_LOOKS ? residency->count : RESIDENCY_LOOKS;
    int64_t away_ns = 0, after_ns = until_ns; /* of the look after the one we are at */
    for (uint64_t back = 1; back <= known; back++) {
        uint64_t i = (residency->count - back) % RESIDENCY_LOOKS;
        int64_t at_ns = residency->looks[i].at_ns;
        if (at_ns >= until_ns)
            continue;
        if (at_ns <= from_ns)
            return away_ns;
        uint64_t before = (residency->count - back - 1) % RESIDENCY_LOOKS;
        int64_t before_ns = back < known ? residency->looks[before].at_ns : from_ns;
        if (before_ns < from_ns)
            before_ns = from_ns;
        if (residency->looks[i].away)
            away_ns += (after_ns - before_ns) / 2;
        after_ns = at_ns;
    }
    return known == RESIDENCY_LOOKS ? -1 : away_ns;
}
