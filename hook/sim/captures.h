/* Simulated CUDA driver: stream capture. What may be done meanwhile is as the driver documents it; where it
 * leaves room ("potentially unsafe calls") this is strict. Thread safe.
 */
#ifndef VGPU_SIM_CAPTURES_H
#define VGPU_SIM_CAPTURES_H

#include "graphs.h"
#include "streams.h"

/* What a call about this stream must answer while it, or one that depends on it, is being captured:
 * CUDA_SUCCESS with *capturing for one that becomes a node. */
CUresult capture_work(struct CUstream_st *stream, bool *capturing);

/* The same for waiting or asking whether work is done, of a stream, an event or everything (NULL): never
 * allowed in a capture. Invalidates the captures it disturbs. */
CUresult capture_look(struct CUstream_st *stream);
CUresult capture_look_event(struct CUevent_st *event);

/* The same for a function that is potentially unsafe, such as an allocation; CUDA_SUCCESS for others. Asked
 * for every function. */
CUresult capture_unsafe(const char *function);

/* Make the node part of the stream's capture, behind what is there. */
CUresult capture_node(struct CUstream_st *stream, struct node_content content, struct CUgraphNode_st **node);

CUresult capture_record(struct CUevent_st *event, struct CUstream_st *stream, bool *capturing);
CUresult capture_await(struct CUstream_st *stream, struct CUevent_st *event, bool *capturing);

/* Where a capture goes: NULL graph for a new one, behind these nodes of a given one, or in place of all of
 * its nodes, which it must be like. */
struct capture_destination {
    CUgraph graph;
    const CUgraphNode *nodes;
    size_t count;
    bool again;
};

CUresult capture_begin(struct CUstream_st *stream, CUstreamCaptureMode mode, struct capture_destination into);
CUresult capture_end(struct CUstream_st *stream, CUgraph *graph);

struct capture_info {
    CUstreamCaptureStatus status;
    uint64_t id; /* this and the rest only of an active one */
    CUgraph graph;
    const CUgraphNode *tips; /* what the next node depends on */
    size_t tip_count;
};

CUresult capture_ask(struct CUstream_st *stream, struct capture_info *info);

/* Change the calling thread's mode; gives the one before. */
CUstreamCaptureMode capture_thread_mode(CUstreamCaptureMode mode);

/* The stream or event goes. */
void capture_drop_stream(struct CUstream_st *stream);
void capture_drop_event(struct CUevent_st *event);

#endif
