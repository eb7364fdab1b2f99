/* What this process was charged for each address and handle: space and key -> bytes and device. Constant
 * time; thread safe; a child of fork starts empty, as its CUDA does.
 */
#ifndef VGPU_BLOCKS_H
#define VGPU_BLOCKS_H

#include <stdbool.h>
#include <stdint.h>

/* Keys of different spaces may be equal. */
enum block_space {
    BLOCK_ADDRESS, /* of memory */
    BLOCK_POOLED, /* of memory from a pool; `device` is the number of the pool's account */
    BLOCK_HANDLE, /* of physical memory (cuMemCreate) */
    BLOCK_ARRAY,
    BLOCK_MIPMAP,
    BLOCK_MODULE,
    BLOCK_LIBRARY,
    BLOCK_CONTEXT,
};

struct block;

/* A block that is not yet in the table, NULL when there is no memory. Made before the driver is asked, so
 * that nothing can fail between its yes and our note of it. */
struct block *block_new(enum block_space space, int device, uint64_t bytes);

/* Put it in under its key; the table owns it from now on. `calls` is added to blocks_calls of its device, if
 * it is not 0. */
void block_add(struct block *block, unsigned long long key, uint64_t calls);

/* Take it out again: the caller owns it. NULL when the key is not ours; or else `calls` is added as above. */
struct block *block_take(enum block_space space, unsigned long long key, uint64_t calls);

/* A number of each device, -1 for none, that is counted here because a lock is held anyway (looks.h). */
uint64_t blocks_calls(int device);

/* It goes with this context. */
void block_set_context(struct block *block, const void *context);

/* It is managed memory. */
void block_set_managed(struct block *block);
bool block_managed(const struct block *block);

/* Whether the context that it goes with has begun to end, the last one that did, since it was taken out. */
bool block_lost(const struct block *block);

/* Take out all that goes with the context, as a list: it is about to end. */
struct block *blocks_take_of(const void *context);
struct block *block_next(const struct block *block);

void block_free(struct block *block);

unsigned long long block_key(const struct block *block);
int block_device(const struct block *block);
uint64_t block_bytes(const struct block *block);

#endif
