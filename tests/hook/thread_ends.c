/* blocks.c where threads end: prints how many blocks 50 threads needed that came one after the other, how often
 * one was given out twice, and how often the program's own allocator was called for it.
 *
 *   thread_ends KEYS    which the program has made before
 */
#include "blocks.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

enum { THREADS = 50, ROUNDS = 4, MOST_BLOCKS = 1000 };

static pthread_key_t later;
static struct block *seen[MOST_BLOCKS];
static int blocks, twice, allocations;
static _Thread_local int rounds;
static _Thread_local bool inside;
void *__libc_calloc(size_t count, size_t bytes);

void *calloc(size_t count, size_t bytes)
{
    allocations += inside;
    return __libc_calloc(count, bytes);
}

static void note(const struct block *block)
{
    int i = 0;
    while (i < blocks && seen[i] != block)
        i++;
    if (i == blocks && blocks < MOST_BLOCKS)
        seen[blocks++] = (struct block *)block;
}

static void use_two(void)
{
    inside = true;
    struct block *one = block_new(BLOCK_ADDRESS, 0, 512), *other = block_new(BLOCK_ADDRESS, 0, 512);
    note(one);
    note(other);
    twice += one == other;
    block_free(one);
    block_free(other);
    inside = false;
}

/* Comes after that of blocks.c, and as often as libc lets it. */
static void end(void *of)
{
    use_two();
    if (++rounds < ROUNDS)
        pthread_setspecific(later, of);
}

static void *run(void *nothing)
{
    pthread_setspecific(later, &rounds);
    use_two();
    return nothing;
}

int main(int argc, char **argv)
{
    pthread_key_t key;
    pthread_t thread;
    for (int keys = argc > 1 ? atoi(argv[1]) : 0; keys > 0; keys--)
        pthread_key_create(&key, NULL);
    use_two();
    pthread_key_create(&later, end);
    for (int i = 0; i < THREADS && pthread_create(&thread, NULL, run, NULL) == 0; i++)
        pthread_join(thread, NULL);
    printf("%d %d %d\n", blocks, twice, allocations);
    return 0;
}
