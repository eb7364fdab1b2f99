/* How many bytes of one device are taken, in one word that all processes of the container share.
 *
 * Atomics only: no lock that a killed process could leave behind. The word also counts its changes, so that a
 * correction computed from older figures is noticed. Thread and process safe.
 */
#ifndef VGPU_LEDGER_H
#define VGPU_LEDGER_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct ledger {
    _Atomic uint64_t word; /* bytes in the low 48 bits, changes modulo 2^16 above */
};
_Static_assert(sizeof(struct ledger) == 8, "shared between processes");

#define LEDGER_MOST_BYTES ((UINT64_C(1) << 48) - 1)
#define LEDGER_MOST_AT_ONCE (UINT64_C(1) << 44) /* 16 TiB: no GPU has that much */

/* Claim `bytes` if they fit under the limit (0: none); `used` is then what is taken, these included. All or
 * nothing. */
bool ledger_reserve(struct ledger *ledger, uint64_t limit_bytes, uint64_t bytes, uint64_t *used);

/* Give `bytes` back, never more than there are; how many it were. */
uint64_t ledger_release(struct ledger *ledger, uint64_t bytes);

uint64_t ledger_used(const struct ledger *ledger);

/* The word as it is, for ledger_correct, and the bytes in it. */
uint64_t ledger_read(const struct ledger *ledger);
uint64_t ledger_bytes_in(uint64_t word);

/* Make the ledger say `bytes`, unless anything changed since `seen` was read. */
bool ledger_correct(struct ledger *ledger, uint64_t seen, uint64_t bytes);

#endif
