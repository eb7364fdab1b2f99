/* Which device a stream belongs to: what is launched on it runs there, whatever context is current. Known
 * without a call of the driver for the streams used last, until they or their contexts end. Thread safe; a
 * child of fork has no streams.
 */
#ifndef VGPU_STREAMS_H
#define VGPU_STREAMS_H

#include "cuda_abi.h"

/* The place (devices.h) of the device that a launch on `stream` runs on, -1 when it cannot be told. NULL and
 * the two special streams are of the current context, and so are all in a driver that tells no stream's
 * context. */
int place_of_stream(CUstream stream);

/* Make the context of a stream current, as a whole (contexts.h): that which is current already, for those
 * that have none of their own. NULL, and nothing is changed, when there is none or the driver refuses. */
CUcontext stream_enter(CUstream stream);
void stream_leave(CUcontext entered);

/* The stream is about to end; or, NULL, a context with all its streams. */
void stream_ends(CUstream stream);

#endif
