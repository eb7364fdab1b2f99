/* Who blocks the container's launches, and until when it is believed: blocks are leases.
 *
 * The agent's names its end, at most 5 s away, and is believed for at most 1 s after it was first seen. A
 * monitor writes -1 into recent_kernel of the usage region, once, and something else when the block ends, so
 * that nobody can tell an old -1 from that of a monitor which has died since. It is asked: the -1 is replaced
 * by a 1. Every 5 s a living monitor counts that down to 0, for which no container is taken for one that
 * computes, and then writes -1 again, or leaves the 0: the block is over. A 1 that stands for 7 s is one that
 * nobody looks at any more. Since when it stands is in the region too, for all processes, and tells it from
 * the 1 of a container that launches nothing.
 */
#ifndef VGPU_LEASES_H
#define VGPU_LEASES_H

#include "throttle.h"

#include <stdbool.h>
#include <stdint.h>

#define LEASES_LONGEST_NS                                                                                    \
    (5000 * MS_NS) /* of the agent's: what names a later time is left from another boot */

/* Whether what the agent lends or blocks until then still does. */
static inline bool leases_hold(uint64_t until_ns, uint64_t now_ns)
{
    return until_ns - now_ns - 1 < (uint64_t)LEASES_LONGEST_NS;
}

/* When to look again; 0: nobody blocks the device. `agent_ns`: until when the agent does. Thread safe. */
uint64_t leases_until_ns(int place, uint64_t agent_ns, uint64_t now_ns);

/* The same of a monitor alone, which blocks all devices. May sleep for a millisecond. */
uint64_t leases_of_monitor_ns(uint64_t now_ns);

#endif
