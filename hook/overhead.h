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

#include "guesses.h"
#include "looks.h"

#include <stdbool.h>
#include <stdint.h>

enum overhead_of { OVERHEAD_CONTEXT, OVERHEAD_PART_OF_CONTEXT, OVERHEAD_MODULE };

struct overhead {
    int place; /* -1: this call is not counted */
    enum overhead_of of;
    uint64_t last_bytes; /* what one cost last; 0: not known */
    struct cost charged; /* ahead of the call */
    struct look before;
    int64_t uncharged_before; /* of other origin; below 0: managed memory that NVML does not count */
    uint64_t calls; /* of this process, as of then; 0: this is not among them, or not any more */
    bool quiet; /* and no call of another thread was under way */
    bool guessed, last_guessed; /* others, or our other threads, may have made it more, or less */
    bool sure; /* guessed by the only process that has come: that goes for other processes of the container */
    uint64_t doubtful_bytes; /* as much of it may be of others' making, or of managed memory that has moved */
    uint64_t beyond_bytes; /* by the GPU's whole use a module took so much, which few do; 0: it did not */
    bool unsure; /* and with it more was there than fits: looked at again once others are done */
    bool first; /* other processes of the container wait for what it cost */
    const char *function;
};

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

/* What was made has been undone, as it took more than others of its kind: how much of that was its own, by
 * what was given back, and not others' doing. To be asked for ahead when it is made again. */
uint64_t overhead_given_back(struct overhead *overhead);

/* The same for a call that may also have given something back: then that is `less`, and what is charged for
 * it is for the caller to give back. */
bool overhead_changed(struct overhead *overhead, struct cost *cost, uint64_t *less);

#endif
