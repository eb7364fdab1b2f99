/* How much the GPU has worked, by any moment of late, of launches that are measured now and then only: by
 * what they were charged when they were made. What was charged is queued, and worked off: at full speed, or
 * in turn with launches that are always measured while such run. So it is known what one of those did not
 * have of its own time. Pure. One user at a time; times in ns.
 */
#ifndef VGPU_WORKED_H
#define VGPU_WORKED_H

#include "past.h"

enum { WORKED_POINTS = 256 };

#define WORKED_APART_NS INT64_C(20000) /* the least between two points */

/* All zero is one that knows nothing. */
struct worked {
    struct worked_point {
        int64_t at_ns;
        int64_t own_ns; /* that one of those had by then which are always measured, had it always run */
    } points[WORKED_POINTS]; /* at number modulo WORKED_POINTS */
    uint64_t last; /* number of the newest, 0: there is none */
    int64_t charged_ns, queued_ns;
    int64_t away_ns; /* of the time since the newest: others had the GPU */
};

/* By then so much had been charged, ever, on `streams`, those of launches that are always measured among
 * them. To be told in order, once it is known what was always measured and ran until then. */
void worked_charged(struct worked *worked, const struct past *past, int64_t at_ns, int64_t charged_ns,
                    int streams);

/* What one that is always measured would have had by a moment, had it always run: what one had is the
 * difference between two. Less than 0 where that is not known any more. */
int64_t worked_own_ns(const struct worked *worked, int64_t at_ns);

#endif
