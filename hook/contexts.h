/* Contexts and the code loaded into them: what each was charged, until it ends with its context at the
 * latest. Thread safe; a child of fork starts empty.
 */
#ifndef VGPU_CONTEXTS_H
#define VGPU_CONTEXTS_H

#include "cuda_abi.h"
#include "guesses.h"

#include <stdbool.h>
#include <stdint.h>

struct context; /* an account */

/* A context was made for `cost`; `green`: by cuCtxFromGreenCtx, and the primary context of its device is
 * retained for it until it has ended. */
void context_made(CUcontext context, CUdevice device, struct cost cost, bool green);

/* The context that owns what is allocated, loaded or measured in this one: of a green one, which is a part of
 * it and may be current to one thread at a time, the primary context of its device; otherwise the same. Takes
 * no lock where no green context was ever made. */
CUcontext context_whole(CUcontext context);

/* Whether surely no second context was ever made, on any device: a stream of another device may free what is
 * of this one's. Green ones are parts of theirs. */
bool context_is_only(void);

/* The device whose primary context is retained for this account's; -1: none. */
CUdevice context_retains(const struct context *account);

/* What ends with a context. It leaves the tables first, before another context can be given the same handle.
 */
struct context_end {
    struct context *account; /* NULL: it has none */
    struct module *modules;
    struct block *blocks;
};

/* It is about to end, with all that is in it; one that does not `own` anything is green. */
void context_ending(struct context_end *end, const void *context, bool owns);

/* It has ended, or the driver refused. */
CUresult context_ended(struct context_end *end, CUresult result);

/* It has one user more (1; the current one, cuCtxAttach), or is to have one less (-1). False: it could not be
 * noted; or that one is the last, with whom it ends. Primary and green contexts do not end so. */
bool context_users(CUcontext context, int more);

/* A limit of the context was raised, which was charged so much; or lowered, which gives bytes back. */
void context_grew(CUcontext context, CUdevice device, struct cost cost);
void context_shrank(CUcontext context, uint64_t bytes);

/* It was lowered beside calls of other threads, and may have given so much back: NVML's figure will tell. */
void context_doubted(CUcontext context, uint64_t bytes);

/* The primary context of a device is one, however often it is retained. True when this retain makes it: it is
 * the first, or the first after a reset. */
bool primary_retaining(CUdevice device);

void primary_retained(CUdevice device, CUcontext context, bool first, CUresult result, struct cost cost);

/* The primary context of a device, as far as it was retained; `last`: with one release more it ends. */
CUcontext primary_releasing(CUdevice device, bool *last);

/* Called after a successful release: whether the context has ended, or may have: `last` as told
 * before. */
bool primary_released(CUdevice device, bool last);

/* What was in it has ended (context_ending, before the driver was asked: others may make it anew meanwhile).
 * It is retained as before, and made anew by who uses or retains it next. */
void primary_was_reset(CUdevice device);

/* Code was loaded into the context for `cost`. */
void module_loaded(const void *module, const void *context, CUdevice device, struct cost cost);
struct module *module_unloading(const void *module);
CUresult module_unloaded(struct module *module, CUresult result);

#endif
