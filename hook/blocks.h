/* What each address of this process was charged: address -> bytes and device. Constant time; thread safe; a
 * child of fork starts empty, as its CUDA does.
 */
#ifndef VGPU_BLOCKS_H
#define VGPU_BLOCKS_H

#include <stdbool.h>
#include <stdint.h>

struct block;

/* A block that is not yet in the table, NULL when there is no memory. Made before the driver is asked, so
 * that nothing can fail between its yes and our note of it. */
struct block *block_new(int device, uint64_t bytes);

/* Put it in under its address; the table owns it from now on. */
void block_add(struct block *block, unsigned long long address);

/* Take it out again: the caller owns it. NULL when the address is not ours. */
struct block *block_take(unsigned long long address);

void block_free(struct block *block);

int block_device(const struct block *block);
uint64_t block_bytes(const struct block *block);

#endif
