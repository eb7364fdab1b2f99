/* Who blocks the container's launches, and until when it is believed: blocks are leases (launch_gate.h). */
#ifndef VGPU_LEASES_H
#define VGPU_LEASES_H

#include <stdint.h>

/* When to look again; 0: nobody blocks the device. `agent_ns`: until when the agent does. Thread safe. */
uint64_t leases_until_ns(int place, uint64_t agent_ns, uint64_t now_ns);

#endif
