/* What a launch goes through that is not paid for already: it waits for its share, or while somebody blocks
 * the container, and may be measured. */
#ifndef VGPU_LAUNCH_WAIT_H
#define VGPU_LAUNCH_WAIT_H

#include "launch_gate.h"

/* Until it may be made; then it is paid for, and its measurement has begun if it is to have one. */
void launch_wait(struct launch *launch, int place);

/* Tell the region's readers that we compute. */
void launch_wait_note(struct lane *lane, uint64_t now_ns);

#endif
