/* Contexts and the code loaded into them: what each was charged, until it ends with its context at the
 * latest. Thread safe; a child of fork starts empty.
 */
#ifndef VGPU_CONTEXTS_H
#define VGPU_CONTEXTS_H

#include "cuda_abi.h"

#include <stdbool.h>
#include <stdint.h>

/* A context (or green context) was made for `bytes`. */
void context_made(const void *context, CUdevice device, uint64_t bytes);

/* It is about to end: gives its account, NULL if it has none. */
struct context *context_ending(const void *context);

/* It has ended, and all that was loaded into it; or the driver refused. */
CUresult context_ended(struct context *context, const void *handle, CUresult result);

/* A limit of the context was raised, which was charged so many bytes; or lowered, which gives them back. */
void context_grew(const void *context, CUdevice device, int64_t bytes);

/* The primary context of a device is one, however often it is retained. True when this retain is the first.
 */
bool primary_retaining(CUdevice device);

void primary_retained(CUdevice device, CUcontext context, bool first, CUresult result, uint64_t bytes);

/* The primary context of a device, as far as it was retained; `last`: with one release more it ends. */
CUcontext primary_releasing(CUdevice device, bool *last);

/* Called after a successful release or reset: whether the context has ended, or may have: `last` as told
 * before. */
bool primary_released(CUdevice device, bool last, bool reset);

/* Code was loaded into the context for `bytes`. */
void module_loaded(const void *module, const void *context, CUdevice device, uint64_t bytes);
struct module *module_unloading(const void *module);
CUresult module_unloaded(struct module *module, CUresult result);

#endif
