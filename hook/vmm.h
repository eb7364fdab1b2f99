/* Physical memory (cuMemCreate): charged when it is made, until the driver really has it back. That is not
 * when its handle is released: mappings and bindings to multicast objects keep it as well. What is imported
 * is its exporter's and counts nothing here, but is followed in the same way. Thread safe; a child of fork
 * starts empty.
 *
 * A mapping that ends is taken off the books before the driver is asked, because it may give the address out
 * again at once, and put back if the driver refuses. A handle stays until the driver has released it, as
 * another thread may be mapping it: one that the driver gives out again meanwhile is found before it.
 */
#ifndef VGPU_VMM_H
#define VGPU_VMM_H

#include "cuda_abi.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct physical;
struct handle;
struct mapping;

/* Charge memory that is about to be made. *physical is NULL when it is not counted.
 * CUDA_ERROR_OUT_OF_MEMORY: the driver is not to be asked. */
CUresult physical_begin(struct physical **physical, uint64_t bytes, const CUmemAllocationProp *properties,
                        const char *function);
CUresult physical_made(struct physical *physical, CUresult result, CUmemGenericAllocationHandle handle);

/* A handle that the driver gave for memory which is not ours, or which we know by another handle or by
 * `address` (0: none). */
void physical_known(CUmemGenericAllocationHandle handle, uint64_t address);

/* Around a call that uses a handle, which another thread may release meanwhile: it is known until the call
 * has ended. NULL: it is not ours. `references` go then: that of the call, and with a release that was made
 * one more. */
struct handle *handle_use(CUmemGenericAllocationHandle handle);
void handle_used(struct handle *handle, int references);

void physical_mapped(uint64_t address, uint64_t bytes, struct handle *handle);

/* All mappings that begin in the range go: the driver refuses a range that parts one. */
struct mapping *mappings_ending(uint64_t address, uint64_t bytes);
CUresult mappings_ended(struct mapping *mappings, CUresult result);

/* Memory, by handle or by an address where it is mapped, is bound at an offset of a multicast object. */
void physical_bound(struct handle *multicast, uint64_t at, uint64_t bytes, struct handle *handle,
                    uint64_t address);

/* What was bound there of the device's memory is not any more: of the first so many bindings, which there
 * were before the driver was asked. */
extern _Atomic uint64_t physical_bindings; /* that there ever were */
void physical_unbound(uint64_t until, CUmemGenericAllocationHandle multicast, CUdevice device, uint64_t at,
                      uint64_t bytes);

#endif
