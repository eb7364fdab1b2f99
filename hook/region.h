/* The file that the processes of one container count their device memory in
 * (CUDA_DEVICE_MEMORY_SHARED_CACHE).
 *
 * Its first part is the shared region of HAMi-core, version 1.2, byte for byte, so that HAMi's monitor can
 * read it: limits and uuids by device, and for each process a slot with what it holds. The ledgers, one per
 * device, follow behind what those readers know. A process adds to its slot before the ledger and takes away
 * after it, so the sum of the slots is never less than what is held; where the two disagree, a process has
 * died, and the sum over the living corrects the ledger. Thread, process and fork safe; every wait is
 * bounded.
 */
#ifndef VGPU_REGION_H
#define VGPU_REGION_H

#include "charge.h"
#include "settings.h"

#include <stdbool.h>
#include <stdint.h>

/* Map the file, making it if need be. False, having logged why, when it cannot be had. Cheap when it is open.
 */
bool region_open(void);

/* Take a slot for this process, opening the file first. False, having logged why, when there is none. */
bool region_join(void);

/* Place of the device with this uuid, taking one for it if it is new; -1 when there is no place left. */
int region_device(const char *uuid);

/* The limit of a device, 0 for none. The file's word goes before the environment's: it holds for all
 * processes. */
uint64_t region_limit_bytes(int device);

/* What all living processes hold of a device. */
uint64_t region_used_bytes(int device);

/* Claim bytes for this process if they fit under the device's limit. All or nothing. */
bool region_reserve(int device, enum charge_kind kind, uint64_t bytes);

/* Count bytes that are taken already, over the limit if need be. */
void region_take(int device, enum charge_kind kind, uint64_t bytes);

void region_release(int device, enum charge_kind kind, uint64_t bytes);

#endif
