#include "blocks.h"
#include "brief.h"
#include "loose.h"
#include "settings.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>

#define COUNTED ((uintptr_t)7) /* of an address that is a multiple of eight */
enum { SHARDS = 64, BUCKETS = 1024, ARENA_BYTES = 1 << 16, CACHE_LINE = 64, STACK_SHIFT = 12 };
enum { KEYS_IN_PLACE = 32 }; /* of glibc's threads: more of them are allocated, by the program's allocator */

struct block {
    union {
        struct block *next;
        uintptr_t ended; /* as below, when it was taken out */
    };
    unsigned long long key;
    uint64_t bytes;
    unsigned space : 8, managed : 1, home : 8; /* the shard that it is made of */
    int device;
    const void *context; /* NULL: it outlives contexts */
};

struct shard {
    _Alignas(CACHE_LINE) struct brief lock;
    struct block *free; /* blocks that are in no use */
    char *fresh, *end; /* what is left of the newest piece of memory */
    _Atomic uint64_t calls[1 + MAX_DEVICES]; /* written with the lock held */
    struct block *buckets[BUCKETS];
};

/* Everything of one process: SHARDS of them. The program's allocator is not used: it may be one that
 * allocates on the GPU, or be interrupted by us. Pages that are never touched cost nothing. */
static _Atomic(struct shard *) current;
static _Atomic uintptr_t ended; /* the context that was the last to end, in eights, and in ones a count */
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* One block of each thread that is in no use: for whoever frees and allocates in turn, which takes no lock
 * then. Others would not find it, so it is put back when the thread ends, which keeps none after that. */
static _Thread_local struct spare {
    struct block *block;
    enum { UNASKED, KEEPS, KEEPS_NONE } state;
} spare __attribute__((tls_model("initial-exec")));
static pthread_key_t at_thread_end;
static bool tells_end; /* of each thread that says so */

/* Left where it is: the parent's other threads are not here to unlock it. */
static void forget_after_fork(void)
{
    loose_store(&current, NULL);
}

static void put_back(struct block *block);

static void thread_ends(void *of)
{
    struct spare *left = of;
    put_back(left->block);
    *left = (struct spare){.state = KEEPS_NONE};
}

static void watch(void)
{
    pthread_atfork(NULL, NULL, forget_after_fork);
    tells_end = pthread_key_create(&at_thread_end, thread_ends) == 0 && at_thread_end < KEYS_IN_PLACE;
}

static void *map_memory(size_t bytes)
{
    void *memory =
        mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return memory == MAP_FAILED ? NULL : memory;
}

static struct shard *make_blocks(void)
{
    struct shard *none = NULL, *made = map_memory(SHARDS * sizeof *made);
    pthread_once(&once, watch);
    if (!made)
        return NULL;
    if (atomic_compare_exchange_strong(&current, &none, made))
        return made;
    munmap(made, SHARDS * sizeof *made); /* another thread was faster */
    return none;
}

static struct shard *blocks(void)
{
    struct shard *known = atomic_load_explicit(&current, memory_order_acquire);
    return known ? known : make_blocks();
}

static uint64_t mix(uint64_t bits)
{
    bits = (bits ^ bits >> 32) * UINT64_C(0x9E3779B97F4A7C15);
    return bits ^ bits >> 29;
}

/* A number that tells threads apart, more or less: they have different stacks. */
static unsigned thread_hash(void)
{
    return (unsigned)mix((uintptr_t)__builtin_frame_address(0) >> STACK_SHIFT);
}

/* --- blocks that are in no use -------------------------------------------------------------------------- */

/* Called with the lock held. */
static struct block *carve(struct shard *shard)
{
    struct block *block = shard->free;
    if (block) {
        shard->free = block->next;
        return block;
    }
    if (shard->fresh == shard->end) {
        char *memory = map_memory(ARENA_BYTES);
        if (!memory)
            return NULL;
        shard->fresh = memory;
        shard->end = memory + ARENA_BYTES / sizeof *block * sizeof *block;
    }
    block = (struct block *)(void *)shard->fresh;
    shard->fresh += sizeof *block;
    return block;
}

/* One out of a shard that other threads seldom use. */
static struct block *take_one(void)
{
    struct shard *all = blocks();
    if (!all)
        return NULL;
    unsigned home = thread_hash() % SHARDS;
    struct shard *shard = &all[home];
    brief_hold(&shard->lock);
    struct block *block = carve(shard);
    brief_let_go(&shard->lock);
    if (block)
        block->home = home & UINT8_MAX;
    return block;
}

static void put_back(struct block *block)
{
    struct shard *all = block ? blocks() : NULL;
    if (!all)
        return;
    struct shard *shard = &all[block->home];
    brief_hold(&shard->lock);
    block->next = shard->free;
    shard->free = block;
    brief_let_go(&shard->lock);
}

struct block *block_new(enum block_space space, int device, uint64_t bytes)
{
    struct block *block = spare.block;
    spare.block = NULL;
    if (!block)
        block = take_one();
    if (block)
        *block = (struct block){.space = space, .home = block->home, .device = device, .bytes = bytes};
    return block;
}

/* Whether what this thread keeps will be put back. */
static bool keeps(void)
{
    if (spare.state == UNASKED)
        spare.state = tells_end && pthread_setspecific(at_thread_end, &spare) == 0 ? KEEPS : KEEPS_NONE;
    return spare.state == KEEPS;
}

void block_free(struct block *block)
{
    if (block && !spare.block && keeps())
        spare.block = block;
    else
        put_back(block);
}

/* --- blocks by key -------------------------------------------------------------------------------------- */

static struct shard *shard_of(struct shard *all, uint64_t hash)
{
    return &all[hash % SHARDS];
}

static struct block **bucket_of(struct shard *shard, uint64_t hash)
{
    return &shard->buckets[hash / SHARDS % BUCKETS];
}

static uint64_t hash_of(enum block_space space, unsigned long long key)
{
    return mix(key + ((uint64_t)space << 56));
}

/* Called with the lock held. */
static void add_calls(struct shard *shard, const struct block *block, uint64_t calls)
{
    if (!calls)
        return; /* its device is the number of a pool, perhaps */
    _Atomic uint64_t *counted = &shard->calls[1 + block->device];
    atomic_store_explicit(counted, loose_load(counted) + calls, memory_order_release);
}

void block_add(struct block *block, unsigned long long key, uint64_t calls)
{
    struct shard *all = blocks();
    if (!all)
        return; /* forked in the middle of a call, and no memory: then CUDA does not work either */
    uint64_t hash = hash_of(block->space, key);
    struct shard *shard = shard_of(all, hash);
    block->key = key;
    brief_hold(&shard->lock);
    struct block **bucket = bucket_of(shard, hash);
    block->next = *bucket;
    *bucket = block;
    add_calls(shard, block, calls);
    brief_let_go(&shard->lock);
}

struct block *block_take(enum block_space space, unsigned long long key, uint64_t calls)
{
    struct shard *all = atomic_load_explicit(&current, memory_order_acquire);
    if (!all)
        return NULL;
    uint64_t hash = hash_of(space, key);
    struct shard *shard = shard_of(all, hash);
    brief_hold(&shard->lock);
    struct block **link = bucket_of(shard, hash);
    while (*link && ((*link)->key != key || (*link)->space != space))
        link = &(*link)->next;
    struct block *block = *link;
    if (block) {
        *link = block->next;
        block->ended = loose_load(&ended);
        add_calls(shard, block, calls);
    }
    brief_let_go(&shard->lock);
    return block;
}

uint64_t blocks_calls(int device)
{
    struct shard *all = atomic_load(&current);
    uint64_t calls = 0;
    for (int i = 0; all && i < SHARDS; i++)
        calls += atomic_load(&all[i].calls[1 + device]);
    return calls;
}

bool block_lost(const struct block *block)
{
    uintptr_t last = loose_load(&ended);
    return last != block->ended && (last & ~COUNTED) == (uintptr_t)block->context;
}

void block_set_context(struct block *block, const void *context)
{
    block->context = context;
}

struct block *blocks_take_of(const void *context)
{
    struct shard *all = atomic_load_explicit(&current, memory_order_acquire);
    struct block *taken = NULL;
    if (!all || !context)
        return NULL;
    for (int i = 0; i < SHARDS * BUCKETS; i++) {
        struct shard *shard = &all[i / BUCKETS];
        brief_hold(&shard->lock);
        for (struct block **link = &shard->buckets[i % BUCKETS]; *link;) {
            struct block *block = *link;
            if (block->context != context) {
                link = &block->next;
                continue;
            }
            *link = block->next;
            block->next = taken;
            taken = block;
        }
        brief_let_go(&shard->lock);
    }
    loose_store(&ended, (uintptr_t)context | ((loose_load(&ended) + 1) & COUNTED));
    return taken;
}

struct block *block_next(const struct block *block)
{
    return block->next;
}

unsigned long long block_key(const struct block *block)
{
    return block->key;
}

int block_device(const struct block *block)
{
    return block->device;
}

void block_set_managed(struct block *block)
{
    block->managed = true;
}

bool block_managed(const struct block *block)
{
    return block->managed;
}

uint64_t block_bytes(const struct block *block)
{
    return block->bytes;
}
