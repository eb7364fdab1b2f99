#include "blocks.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { BUCKETS = 1 << 15, GRANULE = 512 };

struct block {
    struct block *next;
    unsigned long long key;
    uint64_t bytes;
    enum block_space space;
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

static struct block **bucket_of(enum block_space space, unsigned long long key)
{
    return &buckets[(key / GRANULE + (uint64_t)space) * UINT64_C(0x9E3779B97F4A7C15) >> 49];
}

struct block *block_new(enum block_space space, int device, uint64_t bytes)
{
    struct block *block = calloc(1, sizeof *block);
    if (block) {
        block->space = space;
        block->device = device;
        block->bytes = bytes;
    }
    return block;
}

void block_add(struct block *block, unsigned long long key)
{
    pthread_once(&fork_once, watch_forks);
    block->key = key;
    pthread_mutex_lock(&lock);
    struct block **bucket = bucket_of(block->space, key);
    block->next = *bucket;
    *bucket = block;
    pthread_mutex_unlock(&lock);
}

struct block *block_take(enum block_space space, unsigned long long key)
{
    pthread_mutex_lock(&lock);
    struct block **link = bucket_of(space, key);
    while (*link && ((*link)->key != key || (*link)->space != space))
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

unsigned long long block_key(const struct block *block)
{
    return block->key;
}

int block_device(const struct block *block)
{
    return block->device;
}

uint64_t block_bytes(const struct block *block)
{
    return block->bytes;
}
