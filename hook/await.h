/* Waiting for all streams of the current context, but not for ever: one of them may itself wait for what the
 * waiting thread was to do next. Thread safe; must not be called from inside the driver.
 */
#ifndef VGPU_AWAIT_H
#define VGPU_AWAIT_H

#include <stdbool.h>

/* For 10 s at most; not at all as long as somebody did so for nothing in this context and the driver still
 * waits there, or beside an open capture, which it would end. Whether they have come to all that was there.
 */
bool await_streams(void);

/* In a child of fork, where nobody does. */
void await_forget(void);

#endif
