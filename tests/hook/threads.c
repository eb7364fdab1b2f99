/* Many threads of one process at the accounting, for sanitizers: blocks of random sizes come and go through
 * the shapes that wrappers have, while the limit moves and others ask what is used. Prints what is left in
 * the ledger at the end, how often more was given back than was taken, how many children failed, and how many
 * calls are taken to be under way. All must be 0.
 *
 * The driver is a struct of functions in here.
 */
#include "../../hook/region.h"
#include "../../hook/wrap.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { THREADS = 8, MOST_HELD = 16, FORKS = 20 };

static _Atomic int fails_every = 7;
static long rounds;

static CUresult device_of_context(CUdevice *device)
{
    *device = 0;
    return CUDA_SUCCESS;
}

static CUresult uuid_of(CUuuid *uuid, CUdevice device)
{
    memset(uuid, 0x22 + device, sizeof *uuid);
    return CUDA_SUCCESS;
}

static struct real_cuda driver = {.cuCtxGetDevice = device_of_context, .cuDeviceGetUuid = uuid_of};
_Atomic(const void *) real_known[DRIVERS] = {&driver, &driver};
atomic_bool real_cuda_settled;

const void *real_search(enum driver which, bool load)
{
    (void)which;
    return load ? &driver : NULL;
}

static unsigned next(unsigned *state)
{
    return *state = *state * 1664525U + 1013904223U;
}

static void *work(void *argument)
{
    unsigned long long held[MOST_HELD] = {0}, mine = (unsigned long long)(uintptr_t)argument << 32;
    unsigned state = (unsigned)(uintptr_t)argument + 1;
    for (long i = 0; i < rounds; i++) {
        unsigned at = next(&state) / 7 % MOST_HELD;
        struct block *block;
        if (held[at]) {
            wrap_freed(wrap_freeing(BLOCK_ADDRESS, held[at]), CUDA_SUCCESS);
            held[at] = 0;
        } else if (wrap_reserve(&block, BLOCK_ADDRESS, next(&state) % 1000 + 1, "threads") == CUDA_SUCCESS) {
            CUresult answer = i % fails_every ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
            unsigned long long key = mine + (unsigned long long)i * 512 + 512;
            held[at] = wrap_settle(block, answer, key) == CUDA_SUCCESS ? key : 0;
        }
        if (i % 64 == 0)
            region_used_bytes(0);
    }
    for (unsigned at = 0; at < MOST_HELD; at++)
        if (held[at])
            wrap_freed(wrap_freeing(BLOCK_ADDRESS, held[at]), CUDA_SUCCESS);
    return NULL;
}

/* Children start anew, whatever the threads were in the middle of. */
static void *fork_now_and_then(void *failed)
{
    for (int i = 0; i < FORKS; i++) {
        pid_t child = fork();
        struct block *block;
        if (child == 0)
            _exit(wrap_reserve(&block, BLOCK_ADDRESS, 1, "child") != CUDA_SUCCESS);
        int status = 1;
        waitpid(child, &status, 0);
        *(int *)failed += status != 0;
        usleep(1000);
    }
    return NULL;
}

int main(int argc, char **argv)
{
    pthread_t threads[THREADS], forking;
    int failed = 0;
    rounds = argc > 1 ? atol(argv[1]) : 1000;
    bool forks = argc > 2 && strcmp(argv[2], "fork") == 0;
    if (!settings()->active || !region_join())
        return 2;
    for (long i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, work, (void *)i);
    if (forks)
        pthread_create(&forking, NULL, fork_now_and_then, &failed);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    if (forks)
        pthread_join(forking, NULL);
    usleep(200 * 1000); /* so that the children's shares are looked for */
    printf("%llu %llu %d %d\n", (unsigned long long)region_used_bytes(0),
           (unsigned long long)region_device_at(0)->underflows, failed,
           (int32_t)(region_calls(0) + blocks_calls(0)));
    return 0;
}
