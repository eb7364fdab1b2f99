/* What ran on a device lately, as far as it was measured: from when until when, and on which stream.
 *
 * Launches on different streams run beside each other and slow each other down, so the time that each took
 * adds up to more than the GPU worked. Only streams of one context do so: contexts take turns. A stream's
 * highest byte says which it is of. Pure. One user at a time; times in ns.
 */
#ifndef VGPU_PAST_H
#define VGPU_PAST_H

#include <stdbool.h>
#include <stdint.h>

enum { PAST_RUNS = 512, PAST_CONTEXT_AT = 56 };

#define PAST_ANY_CONTEXT UINT64_C(0xff) /* it may be beside those of each */

static inline uint64_t past_context(uint64_t stream)
{
    return stream >> PAST_CONTEXT_AT;
}

/* The stream, as it is called without its context. */
static inline uint64_t past_stream_only(uint64_t stream)
{
    return stream & ((UINT64_C(1) << PAST_CONTEXT_AT) - 1);
}

struct past {
    struct past_run {
        uint64_t number; /* counts from 1 */
        uint64_t stream;
        int64_t from_ns,
            until_ns; /* INT64_MAX while it runs; those of a stream that have ended do not overlap */
        int64_t call, cost_ns; /* the number of its call, and what was expected; 0: not told */
        bool asked; /* what it had was, and */
        bool always; /* its kind is always measured */
        int64_t held_ns; /* what others of its stream had within it, whose was asked before it ended */
    } runs[PAST_RUNS]; /* at number modulo PAST_RUNS */
    uint64_t last;
};

/* Something runs since `from_ns`. Gives its number. */
uint64_t past_began(struct past *past, uint64_t stream, int64_t from_ns);

/* By which call it was launched (they count up), what it was expected to cost, and whether its
 * kind is always measured. */
void past_launched(struct past *past, uint64_t number, int64_t call, int64_t cost_ns, bool always);

/* What the others of its stream were expected to cost that were launched between two calls. */
int64_t past_others_ns(const struct past *past, uint64_t number, int64_t from_call, int64_t until_call);

/* It ran until `until_ns`, and since `from_ns` as it turned out; not at all, if they are the same. Or it
 * still runs (INT64_MAX), and what has ended of its stream meanwhile was seen within its time. */
void past_ended(struct past *past, uint64_t number, int64_t from_ns, int64_t until_ns);

/* What it had of the time between two moments, once it has ended: all that it had its part of, unless another
 * one of its stream is told that. Together they have what the GPU worked. To be asked once. `forgotten_ns`
 * where its place is another's by now, which may still run. */
int64_t past_had_ns(struct past *past, uint64_t number, int64_t from_ns, int64_t until_ns,
                    int64_t forgotten_ns);

/* When something of another context last ended between two moments; the first of them, if nothing did, or if
 * its own context had the GPU before that, as something of it ended. */
int64_t past_elsewhere_ns(const struct past *past, uint64_t stream, int64_t from_ns, int64_t until_ns);

/* Its part of the time between two moments: at each of them, one share of as many as there were streams
 * of its context running. */
int64_t past_part_ns(const struct past *past, uint64_t stream, int64_t from_ns, int64_t until_ns);

/* The same, were there only those whose kinds are always measured. */
int64_t past_part_of_always_ns(const struct past *past, uint64_t stream, int64_t from_ns, int64_t until_ns);

/* On how many streams something runs at a moment whose kind is always measured; and in `until_ns`, if that is
 * earlier, until when nothing else does. */
int past_always_at(const struct past *past, int64_t at_ns, int64_t *until_ns);

#endif
