/* The work that this process has on its GPUs: streams, events, waiting. Thread safe; after a fork the child
 * has none. Streams and events are numbers; 0 is none, given when there is no room or no state. Contexts are
 * numbers too, which are never used again; 0 is the primary one of the GPU.
 */
#ifndef VGPU_SIM_EXECUTION_H
#define VGPU_SIM_EXECUTION_H

#include "execution_state.h"

/* A stream of a context on the GPU with this uuid. `flags` of enum stream_flags. */
uint32_t execution_stream(const char *uuid, uint64_t context, uint32_t flags);

/* The stream goes when its work is done. */
void execution_close(uint32_t stream);

/* Put work of `ns` at the end of a stream; waits while `depth` items are before it. Gives the count of items
 * pushed, which is what to wait for. What is of a meeting has the GPU and does nothing there until its
 * counterparts on as many GPUs have begun. */
uint64_t execution_push(uint32_t stream, uint64_t ns, struct meeting meeting, unsigned depth);

/* How many items were ever pushed. */
uint64_t execution_pushed(uint32_t stream);

/* Whether the first `target` items are done. */
bool execution_done(uint32_t stream, uint64_t target);
void execution_wait(uint32_t stream, uint64_t target);

/* What to wait for until all that was pushed is done; 0: it is. */
uint64_t execution_unfinished(uint32_t stream);

/* Wait for everything this context has on the GPU. */
void execution_wait_all(const char *uuid, uint64_t context);

uint32_t execution_event(const char *uuid, uint64_t context);
void execution_event_free(uint32_t event);

/* Record the event at the end of a stream: gives the turn of this record, and as `pushed` what to wait for in
 * the stream. Or let a stream wait for a turn. */
uint64_t execution_record(uint32_t stream, uint32_t event, uint64_t ns, unsigned depth, uint64_t *pushed);
void execution_await(uint32_t stream, uint32_t event, uint64_t turn, unsigned depth);

/* Whether record `turn` is done; then also when. */
bool execution_event_done(uint32_t event, uint64_t turn, uint64_t *done_ns);
void execution_event_wait(uint32_t event, uint64_t turn);

#endif
