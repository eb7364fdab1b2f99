/* How long an event holds up its stream. A pair of events around a launch takes the launch and one of them,
 * which is much for kernels of a few microseconds, and nobody's but ours.
 *
 * Some events of ours, one behind the other, tell, if the GPU had all at hand: on a stream of ours that waits
 * for a launch meanwhile, or where it took longer for them than they took to be sent, by far. Not on the
 * program's stream, where it could put something between them. Once there are some such rows the least of all
 * counts, as an event takes no longer than any row says, and of one a second after that: a GPU that was idle
 * is slow at first, and what it does for others meanwhile lengthens a row. One thread at a time, with the
 * context current.
 */
#ifndef VGPU_EVENT_COST_H
#define VGPU_EVENT_COST_H

#include "cuda_abi.h"

#include <stdbool.h>
#include <stdint.h>

enum { EVENT_COST_TOLD = 4 }; /* that are enough */

struct event_cost {
    CUstream stream; /* of ours, for this alone; NULL: there is none */
    CUevent first, last; /* of those in a row: the latter is recorded again and again */
    bool out; /* they are, */
    int64_t longer_than_ns; /* and tell something if more lies between them */
    unsigned looks, tries;
    unsigned told, told_behind; /* rows whose events were all at hand, and of them those behind a launch */
    bool seen;
    int64_t least_ns; /* of all rows that were */
};

/* See what is told, and ask again unless enough is: behind `unfinished`, an event that is not done, as far as
 * is known; NULL: behind nothing. */
void event_cost_look(struct event_cost *cost, CUevent unfinished);

/* 0: not known. */
static inline int64_t event_cost_ns(const struct event_cost *cost)
{
    return cost->told < EVENT_COST_TOLD ? 0 : cost->least_ns;
}

/* What a launch took between whose events so much lies, without the event: at least half. */
int64_t event_cost_without_ns(const struct event_cost *cost, int64_t took_ns);

#endif
