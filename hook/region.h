/* The file that the processes of one container count their device memory in: the usage region
 * (CUDA_DEVICE_MEMORY_SHARED_CACHE).
 *
 * Its first part is the shared region of HAMi-core, version 1.2, byte for byte, so that HAMi's monitor can
 * read it: limits and uuids by device, and for each process a slot with what it holds. The ledgers, one per
 * device, follow behind what those readers know.
 *
 * A process adds to its slot before the ledger and takes away after it, so the living slots hold never less
 * than the ledger says. Where they hold exactly something else while none of them is being changed, a process
 * has died, and their sum corrects the ledger (region_slots.h). No lock that another process can be kept
 * waiting by is held while bytes are counted.
 * Thread, process and fork safe; every wait is bounded.
 */
#ifndef VGPU_REGION_H
#define VGPU_REGION_H

#include "brief.h"
#include "charge.h"
#include "region_layout.h"
#include "settings.h"

#include <stdbool.h>
#include <stdint.h>

/* Map the file, making it if need be. False, having logged why, when it cannot be had. Cheap when it is open.
 */
bool region_open(void);

/* Take a slot for this process, opening the file first. False, having logged why, when there is none. */
bool region_join(void);

/* Why the last of the two failed, and what to do; "" when none did. */
const char *region_problem(void);
const char *region_advice(void);

/* Place of the device with this uuid, taking one for it if it is new; -1 when there is no place left. */
int region_device(const char *uuid);

/* What all living processes hold of a device. The dead are looked for at most every 100 ms. */
uint64_t region_used_bytes(int place);

/* Claim bytes for this process if they fit under the device's limit. All or nothing, in one step of the
 * ledger once the process has joined. A place < 0, as that of a seventeenth device, has none: true where no
 * memory is limited, neither by the environment nor by a limits file, and nothing is claimed. `calls` is
 * added to region_calls before others see the bytes; where these are refused, only its upper half. */
bool region_reserve(int place, enum charge_kind kind, uint64_t bytes, uint64_t calls);

/* Look for the dead, before something is refused. */
void region_sweep(void);

/* Count bytes that are taken already, over the limit if need be. */
void region_take(int place, enum charge_kind kind, uint64_t bytes);

/* `calls` is added to region_calls afterwards. */
void region_release(int place, enum charge_kind kind, uint64_t bytes, uint64_t calls);

/* A number of each place, -1 for none, that is counted here because a lock is held anyway (looks.h). */
void region_add_calls(int place, uint64_t calls);
uint64_t region_calls(int place);

/* Put a refusal on record for the agent. */
void region_note_refusal(int place, uint64_t bytes, const char *function);

/* What this process is charged for on a device. */
uint64_t region_own_bytes(int place);

/* This process's pid as the node sees it, when the agent has told; otherwise 0. */
int32_t region_host_pid(void);

/* What a context cost when one was made last on this device; odd: by a guess; 0: not known. */
uint64_t region_context_bytes(int place);
void region_set_context_bytes(int place, uint64_t bytes);

/* The same if it was `from`; whether it was. */
bool region_exchange_context_bytes(int place, uint64_t from, uint64_t bytes);

/* --- what the region's readers are told, and tell us ---------------------------------------------------- */

/* The limit of a device as it stands in the file, which holds where the agent gave none; 0: none. */
uint64_t region_told_bytes(int place);
uint32_t region_told_permille(int place);
void region_tell_limits(int place, uint64_t limit_bytes, uint32_t core_permille);

/* Whether the monitor wants shares of time to be kept. */
bool region_switch_is_on(void);

/* The whole file, and our part for one device: for the accounting of GPU time. NULL before region_open. */
extern _Atomic(struct region *) region_known __attribute__((visibility("hidden")));
static inline struct region *region_mapped(void)
{
    return atomic_load_explicit(&region_known, memory_order_acquire);
}
struct region_device *region_device_at(int place);

/* Where this process counts; NULL before region_join. */
extern _Atomic(struct region_slot *) region_mine __attribute__((visibility("hidden")));
static inline struct region_slot *region_own_slot(void)
{
    return atomic_load(&region_mine);
}

/* What this process holds and its calls are changed with this held; they are single words for who reads. */
extern struct brief region_own_lock __attribute__((visibility("hidden")));
extern _Atomic uint64_t region_own_calls[1 + MAX_DEVICES] __attribute__((visibility("hidden")));

/* After a fork. */
void region_own_forget(void);

#endif
