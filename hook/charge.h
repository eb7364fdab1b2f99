/* Bytes of a device's memory, charged to this process: the one door from the wrappers to the budget.
 *
 * A wrapper asks before it calls the driver, keeps what it charged in a block (blocks.h), and gives it back
 * when the driver refuses or the memory is freed. Nothing here calls the driver. Thread, process and fork
 * safe.
 */
#ifndef VGPU_CHARGE_H
#define VGPU_CHARGE_H

#include "cuda_abi.h"
#include "depth.h"
#include "settings.h"

#include <stdbool.h>
#include <stdint.h>

/* Told apart in the slot for its readers; one budget for all of them. */
enum charge_kind { CHARGE_DATA, CHARGE_CONTEXT, CHARGE_MODULE, CHARGE_KINDS };

/* Whether calls of this thread are counted: something is to be limited or counted, and this is not the driver
 * calling itself from inside one of our wrappers. */
bool charging(void);

/* The same in place, for what is over in less time than a call takes. */
static inline bool charging_inline(void)
{
    return settings()->active && !depth_inside();
}

/* The same for a call that asks for so many bytes. Not counted is nothing, and what no address could name:
 * that cannot be given, and only the driver knows which of its errors it is. */
bool charging_bytes(uint64_t bytes);

/* Claim `bytes` of the device at `place` (devices.h). CUDA_SUCCESS, or CUDA_ERROR_OUT_OF_MEMORY with nothing
 * claimed and the refusal on record (`function`: the driver's function that asked, a literal; NULL: none
 * yet). A place < 0 is a device that cannot be counted, as the seventeenth: refused where any memory is
 * limited, or else given and not counted. `calls`: what is counted with it (looks.h). */
CUresult charge(int place, enum charge_kind kind, uint64_t bytes, uint64_t calls, const char *function);

/* The parts that `charge` is made of, for who must not be interrupted between looking and claiming: claim
 * what fits, in one step; give what dead processes hold back, which may take milliseconds; put the refusal on
 * record, and answer CUDA_ERROR_OUT_OF_MEMORY. */
bool charge_at_once(int place, enum charge_kind kind, uint64_t bytes, uint64_t calls);
void charge_from_the_dead(void);
CUresult charge_refused(int place, uint64_t bytes, const char *function);

/* What the driver has taken already and cannot be refused any more. May exceed the limit. */
void charge_anyway(int place, enum charge_kind kind, uint64_t bytes);

/* `calls` is counted when the bytes are back. */
void charge_back(int place, enum charge_kind kind, uint64_t bytes, uint64_t calls);

#endif
