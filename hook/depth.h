/* Whether this thread is inside a wrapper: what the driver itself calls or looks up then is its own business,
 * or a block would be charged twice. One word of thread-local storage, of the kind that needs no call and no
 * allocation.
 */
#ifndef VGPU_DEPTH_H
#define VGPU_DEPTH_H

#include <stdbool.h>

bool depth_inside(void);
void depth_enter(void);
void depth_leave(void);

#endif
