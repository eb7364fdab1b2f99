/* What the driver takes of a device for itself, and no call tells: contexts, code, heaps. It is measured
 * around the calls that make it take something.
 *
 * The measure is NVML's figure for this process, where NVML lists it under a pid that is known to be ours;
 * otherwise, of its first context, that of the largest process that has come to the GPU meanwhile, or where
 * there is none, and of all else, the change of all memory in use on the GPU, which others change as well: a
 * guess, which is bounded, and made true as a whole once the pid is known. Without NVML nothing is measured,
 * and a context is charged what one cost last. Nothing is measured on devices without a limit. Thread safe.
 */
#ifndef VGPU_OVERHEAD_H
#define VGPU_OVERHEAD_H

#include "charge.h"
#include "figures.h"

#include <stdbool.h>
#include <stdint.h>

/* What something was charged, and how much of that by a guess. */
struct cost {
    uint64_t bytes, guessed_bytes;
};

enum overhead_of { OVERHEAD_CONTEXT, OVERHEAD_PART_OF_CONTEXT, OVERHEAD_MODULE };

struct look {
    struct figures now;
    uint64_t calls; /* as of before */
    int64_t uncharged, elsewhere_bytes;
};

struct overhead {
    int place; /* -1: this call is not counted */
    enum overhead_of of;
    uint64_t last_bytes; /* what one cost last; 0: not known */
    struct cost charged; /* ahead of the call */
    struct look before;
    int64_t uncharged_before; /* of other origin */
    uint64_t calls; /* of this process, as of then; 0: this is not among them, or not any more */
    bool quiet; /* and no call of another thread was under way */
    bool guessed, last_guessed; /* others, or our other threads, may have made it more, or less */
    bool sure; /* guessed by the only process that has come: that goes for other processes of the container */
    uint64_t doubtful_bytes; /* as much of it may be of others' making, or of managed memory that has moved */
    bool unsure; /* and with it more was there than fits: looked at again once others are done */
    bool first; /* other processes of the container wait for what it cost */
    const char *function;
};

/* Around each call of this process after which the driver holds more or less of the place's memory: from
 * before that is charged until it has been given, or from before it is taken back until the charge is as
 * well. Meanwhile NVML's figure says nothing of what was charged too much. One that never ends, of a thread
 * that was cancelled, keeps guesses from being given back. What is measured here is such a call by itself. A
 * place < 0 is none. */
void overhead_call_begins(int place);
void overhead_call_ended(int place);

/* The same where nobody knows yet which places it is of. */
void overhead_calls(bool begin);

/* Before the call. A context is charged what one cost last, and anything what it is asked for:
 * CUDA_ERROR_OUT_OF_MEMORY when that does not fit and is no guess, and the driver is not to be asked. */
CUresult overhead_begin(struct overhead *overhead, CUdevice device, enum overhead_of of, uint64_t asked_bytes,
                        const char *function);

/* The call has failed: nothing stays charged. */
void overhead_failed(struct overhead *overhead);

/* The call was made: gives what it took, which is charged then; of a first guess that does not fit, what is
 * left of the limit. False when that does not fit, or nothing is left: the caller undoes what was made and
 * says overhead_failed. */
bool overhead_made(struct overhead *overhead, struct cost *cost);

/* The same for a call that may also have given something back: then that is `less`, and what is charged for
 * it is for the caller to give back. */
bool overhead_changed(struct overhead *overhead, struct cost *cost, uint64_t *less);

/* Of what was charged before, so much may have been given back, which could not be measured: a guess now. */
void overhead_doubted(int place, uint64_t bytes);

/* What was charged so much has ended: gives back what is left of it. A guess may have been corrected since.
 */
void overhead_ended(int place, enum charge_kind kind, struct cost cost);

/* Compare what this process is charged with NVML's figure for it, at most once a second (or now): what the
 * driver took without a call that we see, as for code that is loaded when it first runs, is charged as well,
 * and what is not there any more, or was only guessed, is not. Not for hot paths. */
void overhead_reconcile(int place, bool now);

/* The same before something is charged; `now` only where a guess was not compared yet. Cheap but once a
 * second. */
void overhead_settle(int place, bool now);

/* Managed memory was charged (negative: is not any more): as much of the charge may be of pages that are not
 * on the GPU, and is no sign that something else has gone. */
void overhead_managed(int place, int64_t bytes);

/* What is charged so, or by a guess: some of it may not be there. */
uint64_t overhead_unseen_bytes(int place);

#endif
