/* When a context had the GPU, and when another one did, of this process or another. GPUs without partitions
 * are shared in time: an event measures how long a kernel took, and if others had their turn meanwhile that
 * is more than it cost.
 *
 * Told by probes: events on a stream of our own that is idle otherwise, one at a time. The GPU comes to them
 * only while it works for our context, so a probe that is handled at once says that we have the GPU, and one
 * that waits says that we had not, until it was handled. Each moment at which we looked stands for the time
 * around it. Pure. One writer at a time; times in ns, in order.
 */
#ifndef VGPU_RESIDENCY_H
#define VGPU_RESIDENCY_H

#include <stdbool.h>
#include <stdint.h>

enum { RESIDENCY_LOOKS = 2048 };

struct residency {
    struct {
        int64_t at_ns;
        int away; /* how often it counts as a look at somebody else's turn */
        int running; /* launches of ours, that share the time it stands for */
        int64_t back_ns; /* when that turn ended */
    } looks[RESIDENCY_LOOKS]; /* the newest is at count - 1, modulo RESIDENCY_LOOKS */
    uint64_t count;
    uint64_t undecided; /* of the newest ones: the probe is still out */
    int64_t next_ns; /* when the probe was last seen handled: the next look comes then, */
    bool next_later; /* or not before */
};

/* We looked, and a probe is out that was not handled yet: sent now, or before. So many launches of ours have
 * begun and not ended. */
void residency_look(struct residency *residency, int64_t now_ns, int running);

/* The probe was handled at this time. A delay below `patience_ns` is no delay, which hides the end of every
 * turn of others; delays just above stand for those. Whether we had been away. */
bool residency_handled(struct residency *residency, int64_t at_ns, int64_t patience_ns);

/* How much of the time between two moments, at both of which we had the GPU, others had it. `part`: what one
 * launch that ran all the time had to wait for of that, each moment being shared by those that ran then. */
int64_t residency_away_ns(const struct residency *residency, int64_t from_ns, int64_t until_ns, bool part);

/* Whether what was launched and ended so was still to run when looks ceased for long, and over when they went
 * on: as where a container's processor time is used up. What others had of its time is not known. */
bool residency_unseen(const struct residency *residency, int64_t launched_ns, int64_t from_ns,
                      int64_t until_ns, int64_t now_ns);

/* When the last turn of others that ended between the two moments did so; 0: none that was seen. */
int64_t residency_back_ns(const struct residency *residency, int64_t from_ns, int64_t until_ns);

#endif
