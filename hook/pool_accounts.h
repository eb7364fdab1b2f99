/* Between the pools (pools.c) and what is allocated from them (pooled.c). */
#ifndef VGPU_POOL_ACCOUNTS_H
#define VGPU_POOL_ACCOUNTS_H

#include "cuda_abi.h"
#include "reserve.h"
#include "table.h"

#include <stdatomic.h>
#include <stdbool.h>

enum { POOL_NOT_COUNTED = -1, NO_POOL_ACCOUNT = -2, POOL_GONE = -3 };

/* Yields of the processor until other threads are waited for no more: tenths of a second at least. */
enum { POOL_PATIENCE = 1 << 20 };

/* An account is never freed, only used for another pool when this one is gone with all it had. */
struct pool {
    struct entry entry; /* in `known`, by handle, while the pool exists */
    struct reserve reserve;
    CUmemoryPool handle; /* NULL: the pool was destroyed */
    CUdevice device; /* POOL_NOT_COUNTED: it is of other memory, or another process's */
    bool ending; /* the driver is about to destroy it */
    _Atomic bool ended; /* for the program; the driver destroys it when nothing of it is left */
    _Atomic unsigned visits; /* of threads that ask the driver about it, or for some of it */
};

/* How often one began to end or has ended. */
uint64_t pool_ends(void);

/* The number of the pool's account; NO_POOL_ACCOUNT: there are too many. `*device`, where it is first used,
 * becomes the pool's, or POOL_NOT_COUNTED for one that is not to be counted. `ends`: as of before its handle
 * was asked for; POOL_GONE: it may have ended since, and the handle be nobody's or another's. */
int pool_account_of(CUmemoryPool handle, CUdevice *device, uint64_t ends);

struct pool *pool_at(int number);

/* Make the charge what the driver has reserved. False when that is more than is charged, and over the limit,
 * unless `anyway`. */
bool pool_settle(struct pool *pool, bool anyway);

/* From one that gives true to pool_unvisit the pool's handle stays one: nobody lets the driver destroy it, or
 * only after POOL_PATIENCE. False: it ends, or has, or is of another place, or that is not its handle (NULL:
 * any). */
bool pool_visit(struct pool *pool, int place, CUmemoryPool handle);
void pool_unvisit(struct pool *pool);

/* Something of a pool that was destroyed is free. */
void pool_look(struct pool *pool);

#endif
