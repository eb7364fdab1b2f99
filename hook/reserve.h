/* The charge for memory that the driver reserves in steps and hands out in pieces: a pool, or the graphs of a
 * device.
 *
 * What is charged is never less than what the driver was last seen to have reserved, or where it does not
 * tell, than what is live.
 * Before pieces are asked for, the steps that they may add are claimed; afterwards the charge follows what
 * the driver says. Thread safe; never calls the driver, and holds its lock for no more than a step of the
 * ledger.
 */
#ifndef VGPU_RESERVE_H
#define VGPU_RESERVE_H

#include "charge.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

struct reserve {
    pthread_mutex_t lock;
    _Atomic int place; /* changes where another pool takes an unused account */
    uint64_t live_bytes, charged_bytes;
    uint64_t pending_bytes, pending_in; /* freed in streams that may not have come to it: which */
    uint64_t freed_bytes; /* ever */
    uint64_t seen_bytes; /* what the driver had when it told last, or more */
    uint64_t step_bytes; /* what the driver was seen to grow by; at first the most it is known to */
    unsigned claims; /* under way: between claim and settled */
    uint64_t changes; /* so that a figure from before a change is told from one after it */
};

void reserve_init(struct reserve *reserve, int place);

/* The same for one that was in use and has nothing left. */
void reserve_reset(struct reserve *reserve, int place);

/* What is freed in a stream is that stream's alone until it has come there: others may need as much anew.
 * Streams are told apart by numbers. */
enum { NO_STREAM_NUMBER, SEVERAL_STREAMS };

/* `bytes` are about to be taken from it in a stream. CUDA_SUCCESS with the charge large enough, or
 * CUDA_ERROR_OUT_OF_MEMORY with everything as it was. Each success is followed by reserve_claimed. */
CUresult reserve_claim(struct reserve *reserve, uint64_t stream, uint64_t bytes, const char *function);

/* A taker that uses what others use at other times is about to see what there is: until reserve_claimed with
 * 0 bytes the charge does not become less. */
void reserve_hold(struct reserve *reserve);

/* In between: the charge becomes at least `bytes`, nothing more is live. Answers as reserve_claim does. */
CUresult reserve_require(struct reserve *reserve, uint64_t bytes, const char *function);

/* The driver has answered: `kept` whether it gave the bytes. */
void reserve_claimed(struct reserve *reserve, uint64_t bytes, bool kept);

/* `bytes` of it are free again, or will be when the stream comes there. The charge stays until the driver's
 * reserve is seen to be smaller. */
void reserve_freed(struct reserve *reserve, uint64_t stream, uint64_t bytes);

/* Another stream may be given this number, if it is not SEVERAL_STREAMS: any. */
void reserve_stream_ends(struct reserve *reserve, uint64_t stream);

/* Whether streams may have to be waited for before all that is free can be used. */
bool reserve_pending(struct reserve *reserve);

/* Bytes that were ever freed: more, and there may be room by now. */
uint64_t reserve_freed_ever(struct reserve *reserve);

/* Streams have come to all that had been freed when `freed_ever` was asked for. */
void reserve_awaited(struct reserve *reserve, uint64_t freed_ever);

/* Ask before the driver is asked what it has reserved, and pass it on with the answer. */
uint64_t reserve_changes(struct reserve *reserve);

/* The driver has `reserved_bytes`, of which the charge then is. TOO_MUCH when that is more than is charged
 * and the difference does not fit under the limit: the caller gives memory back, or says `anyway`. ASK_AGAIN
 * when it is more, and from before somebody settled for less: the driver may have given memory back since. */
enum settled { SETTLED, TOO_MUCH, ASK_AGAIN };
enum settled reserve_settle(struct reserve *reserve, uint64_t changes, uint64_t reserved_bytes, bool anyway);

/* Nothing is live, charged, or about to be. */
bool reserve_unused(struct reserve *reserve);

/* What the driver had when it told last, or more. */
uint64_t reserve_seen_bytes(struct reserve *reserve);

/* Charged for nothing that is live. */
uint64_t reserve_idle_bytes(struct reserve *reserve);

#endif
