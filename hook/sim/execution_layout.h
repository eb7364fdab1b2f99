/* What all processes of the simulated node know of its GPUs at work: one file, `<configuration>.gpu`, mapped
 * by each. Changed only under the lock in it, which is robust: a holder that is killed does not keep it.
 *
 * A lane is one context of a process on one GPU, the unit that takes turns. It stays, as the record of the
 * GPU time the process had there, until its place is needed for another.
 */
#ifndef VGPU_SIM_EXECUTION_LAYOUT_H
#define VGPU_SIM_EXECUTION_LAYOUT_H

#include "node.h"

#include <pthread.h>
#include <stdatomic.h>

enum {
    EXECUTION_VERSION = 4,
    MAX_LANES = 1024,
    MAX_LIVE_LANES = 128, /* on one GPU */
    MAX_STREAMS = 1024,
    MAX_STREAM_EVENTS = 65536,
    MAX_THREADS = 512,
    RING = 1024,
    WORK_SHIFT = 10 /* work is counted in ns / 1024, so that sharing rounds nothing off that anyone sees */
};

#define NOTHING UINT32_MAX /* no row */

enum item_kind { ITEM_KERNEL, ITEM_EVENT, ITEM_WAIT };

/* What a kernel works together with: as many GPUs' of the same number among those pushed there. */
struct meeting {
    uint32_t number, gpus; /* number 0: with nothing */
};

#define NO_MEETING ((struct meeting){0})

struct item {
    uint64_t arrival_ns; /* not before */
    uint64_t order; /* among all items of the lane */
    uint64_t work; /* left, of a kernel or an event */
    uint32_t kind;
    uint32_t event; /* of ITEM_EVENT and ITEM_WAIT */
    uint64_t turn; /* of the event, or of the meeting on this GPU */
    struct meeting meeting; /* of ITEM_KERNEL */
};

enum stream_flags { STREAM_IN_USE = 1, STREAM_LEGACY = 2, STREAM_NON_BLOCKING = 4, STREAM_CLOSING = 8 };
enum { STREAM_PRIORITY_SHIFT = 8 }; /* above them, how urgent it is */
#define STREAM_PRIORITY(flags) ((flags) >> STREAM_PRIORITY_SHIFT)

struct stream_row {
    uint32_t lane;
    uint32_t flags;
    uint32_t next; /* stream of the lane, or NOTHING */
    uint32_t number; /* among those of the lane that are as urgent, at first */
    uint64_t head, tail; /* counts of items ever finished and ever pushed */
    struct item ring[RING];
};

/* An event is done up to the turn of its newest finished record. */
struct event_row {
    uint32_t owner; /* lane + 1; 0: free */
    uint32_t unused;
    uint64_t done_turn, done_ns;
};

enum lane_state { LANE_FREE, LANE_LIVE, LANE_ENDED };

struct lane_row {
    uint32_t pid, gpu, state, streams; /* first of its streams, or NOTHING */
    uint64_t start_time;
    uint64_t busy_ns; /* the GPU worked for this context */
    uint64_t kernels; /* finished */
    uint64_t order; /* of the next item */
    uint64_t pending; /* items */
};

struct gpu_row {
    char uuid[TEXT_BYTES];
    uint32_t lanes[MAX_LIVE_LANES]; /* live ones, in the order in which they take turns */
    uint32_t lane_count;
    uint32_t turn; /* place in lanes of the one that has the GPU */
    uint32_t running; /* kernels that are running, */
    uint32_t recording; /* and events that are being recorded, which takes their stream's time only */
    uint64_t slice_end_ns;
    uint64_t busy_ns;
};

enum thread_state {
    THREAD_FREE,
    THREAD_RUNS,
    THREAD_SLEEPS,
    THREAD_AWAITS_STREAM,
    THREAD_AWAITS_EVENT,
    THREAD_OUTSIDE
};

/* A thread that takes part in the virtual clock. */
struct thread_row {
    uint32_t state;
    uint32_t pid, tid; /* the second is 0 until it has begun */
    uint64_t start_time; /* of its process */
    uint64_t wake_ns; /* of one that sleeps; of one that runs, since when */
    uint32_t rank, number; /* who goes first among those of the same time: process, then thread */
    uint32_t object; /* stream or event */
    _Atomic uint32_t turn; /* futex */
    uint64_t target;
};

struct execution {
    uint32_t version, bytes;
    uint64_t slice_ns;
    uint64_t now_ns; /* everything that happens before is settled */
    uint64_t looked_ns; /* real time when the living were last counted */
    struct lane_row lanes[MAX_LANES]; /* the readers of GPU time know this place */
    struct gpu_row gpus[MAX_GPUS];
    pthread_mutex_t lock;
    bool virtual_clock;
    uint32_t thread_high; /* rows in use lie below */
    uint32_t running_thread; /* whose turn it is, or NOTHING */
    uint32_t processes_expected, processes_joined;
    uint32_t processor; /* + 1; that the threads of the virtual clock should run on */
    uint32_t
        connections; /* hardware queues of a process, for streams that are as urgent; 0: as many as streams */
    uint32_t event_high; /* rows in use lie below */
    uint64_t event_turns;
    uint64_t given_ns; /* real time when the turn was given */
    struct thread_row threads[MAX_THREADS];
    struct event_row events[MAX_STREAM_EVENTS];
    struct {
        uint64_t pushed[MAX_GPUS], begun[MAX_GPUS]; /* of each GPU, counts */
    } met[MAX_KERNELS];
    struct stream_row streams[MAX_STREAMS]; /* the tests of loads find them from the end */
};

/* agent/sim/driver.py reads these. */
_Static_assert(offsetof(struct execution, lanes) == 32 && sizeof(struct lane_row) == 56, "lanes");
_Static_assert(offsetof(struct lane_row, busy_ns) == 24 && sizeof(struct gpu_row) == 640, "rows");

#endif
