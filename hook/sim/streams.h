/* Simulated CUDA driver: what streams, captures and graphs know of each other. Thread safe as each function
 * says.
 */
#ifndef VGPU_SIM_STREAMS_H
#define VGPU_SIM_STREAMS_H

#include "cuda_call.h"
#include "execution_layout.h"

#include <stdatomic.h>

struct capture;
struct CUgraphNode_st;

enum { STREAM_MARK = 0x73747265, EVENT_MARK = 0x6576656e }; /* of a handle that is alive */

struct CUstream_st {
    unsigned mark;
    struct CUstream_st *next; /* of those that were created */
    CUdevice device;
    CUcontext context;
    uint64_t number; /* of the context */
    unsigned flags; /* of enum stream_flags */
    int priority;
    _Atomic uint32_t row; /* of execution.h; 0 until there was work */
    atomic_bool known; /* of legacy ones of primary contexts */
    struct capture *_Atomic capture; /* changed under capture_lock; NULL: not being captured */
    struct CUgraphNode_st **tips; /* what the next captured node depends on */
    size_t tip_count;
};

struct CUevent_st {
    unsigned mark;
    struct CUevent_st *next;
    CUcontext context;
    CUdevice device;
    bool timed;
    uint32_t row;
    _Atomic uint64_t turn; /* of the newest record; 0: none */
    _Atomic uint32_t stream; /* row of that record's stream, and what to wait for there */
    _Atomic uint64_t pushed;
    struct capture *_Atomic capture; /* the last record is part of it */
    struct CUgraphNode_st **tips;
    size_t tip_count;
};

struct stream_call {
    struct cuda_call call;
    struct CUstream_st *stream;
};

/* Begin a call about a stream: NULL and the special handles are resolved. Ends with cuda_end(&call.call).
 * What the driver leaves undefined, a stream or event that is gone, ends the process here. */
CUresult stream_begin(struct stream_call *call, const char *function, CUstream stream, bool per_thread);

/* Put work on it; 0: impossible. */
uint64_t stream_push(struct stream_call *call, uint64_t ns, struct meeting meeting);

/* The stream's row, with one made if it has none. */
uint32_t stream_row(struct stream_call *call);

#endif
