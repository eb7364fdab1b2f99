#include "blocks.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { BUCKETS = 1 << 15, GRANULE = 512 };

struct block {
    struct block *next;
    unsigned long long address;
    uint64_t bytes;
    int device;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t fork_once = PTHREAD_ONCE_INIT;
static struct block *buckets[BUCKETS]; /* untouched pages of it cost nothing */

static void forget_after_fork(void)
{
    pthread_mutex_init(&lock, NULL); /* the parent's other threads are not here to unlock it */
    memset(buckets, 0, sizeof buckets);
}

static void watch_forks(void)
{
    pthread_atfork(NULL, NULL, forget_after_fork);
}

static struct block **bucket_of(unsigned long long address)
{
    return &buckets[address / GRANULE * UINT64_C(0x9E3779B97F4A7C15) >> 49];
}

struct block *block_new(int device, uint64_t bytes)
{
    struct block *block = calloc(1, sizeof *block);
    if (block) {
        block->device = device;
        block->bytes = bytes;
    }
    return block;
}

void block_add(struct block *block, unsigned long long address)
{
    pthread_once(&fork_once, watch_forks);
    block->address = address;
    pthread_mutex_lock(&lock);
    struct block **bucket = bucket_of(address);
    block->next = *bucket;
    *bucket = block;
    pthread_mutex_unlock(&lock);
}

struct block *block_take(unsigned long long address)
{
    pthread_mutex_lock(&lock);
    struct block **link = bucket_of(address);
    while (*link && (*link)->address != address)
        link = &(*link)->next;
    struct block *block = *link;
    if (block)
        *link = block->next;
    pthread_mutex_unlock(&lock);
    return block;
}

void block_free(struct block *block)
{
    free(block);
}

int block_device(const struct block *block)
{
    return block->device;
}

uint64_t block_bytes(const struct block *block)
{
    return block->bytes;
}
