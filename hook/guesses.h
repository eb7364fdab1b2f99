/* What was charged without anybody saying how much: by guesses, and what the driver took unseen. It is
 * compared with NVML's figure for this process, and made true as a whole. Thread safe.
 */
#ifndef VGPU_GUESSES_H
#define VGPU_GUESSES_H

#include "charge.h"

#include <stdbool.h>
#include <stdint.h>

#define CONTEXT_GUESSED UINT64_C(1) /* in what a context cost last: by the GPU's whole use */

/* What something was charged, and how much of that by a guess. */
struct cost {
    uint64_t bytes, guessed_bytes;
};

/* Of what was charged before, so much may have been given back, which could not be measured: a guess now. */
void guesses_made(int place, uint64_t bytes);

/* What was charged so much has ended: gives back what is left of it. A guess may have been corrected since.
 */
void guesses_ended(int place, enum charge_kind kind, struct cost cost);

/* Compare what this process is charged with NVML's figure for it, at most once a second (or now): what the
 * driver took without a call that we see, as for code that is loaded when it first runs, is charged as well,
 * and what is not there any more, or was only guessed, is not. Not for hot paths. */
void guesses_reconcile(int place, bool now);

/* The same before something is charged; `now` only where a guess was not compared yet. Cheap but once a
 * second. */
void guesses_settle(int place, bool now);

/* So much is about to be asked for, of which the driver may take whole pages, what of them is not asked for
 * being unseen. Whether what all of these since the last comparison may come to is much of what is left, so
 * that it is to be compared before more is given. */
bool guesses_may_round(int place, uint64_t bytes);

/* Whether NVML's figure was not seen yet to bear out the guesses there. */
bool guesses_unsettled(int place);

/* A context was guessed to cost so much. */
void guesses_context(int place, uint64_t bytes);

/* What is charged so, or by a guess: some of it may not be there. */
uint64_t guesses_unseen_bytes(int place);

/* After a fork. */
void guesses_forget(void);

#endif
