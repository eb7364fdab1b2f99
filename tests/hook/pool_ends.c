/* One thread makes a pool, makes it the device's current one and destroys it; others allocate from the current
 * one, whichever that is, and free that.
 *
 *     pool_ends ROUNDS THREADS
 *
 * Prints how often something was had, how many answers were none that may be expected, and how many KiB are in
 * use when all is over.
 */
#include "cuda_abi.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

enum { MOST_THREADS = 16, PIECE = 1 << 20, NON_BLOCKING = 1 };

static void *cuda;
static CUcontext primary;
static int rounds;
static atomic_bool over;
static atomic_long had, wrong;

#define CALL(name) ((__typeof__(&name))dlsym(cuda, #name))

static void *allocates(void *unused)
{
    CUstream stream;
    CUdeviceptr address;
    CALL(cuCtxSetCurrent)(primary);
    CALL(cuStreamCreate)(&stream, NON_BLOCKING);
    while (!over) {
        CUresult result = CALL(cuMemAllocAsync)(&address, PIECE, stream);
        had += result == CUDA_SUCCESS;
        wrong += result != CUDA_SUCCESS && result != CUDA_ERROR_OUT_OF_MEMORY;
        if (result == CUDA_SUCCESS)
            CALL(cuMemFreeAsync)(address, stream);
    }
    return unused;
}

int main(int count, char **words)
{
    CUmemPoolProps props = {.allocType = 1, .location = {.type = 1}};
    CUmemoryPool pool;
    pthread_t threads[MOST_THREADS];
    size_t room = 0, total = 0;
    rounds = count == 3 ? atoi(words[1]) : 0;
    int others = count == 3 ? atoi(words[2]) : 0;
    cuda = dlopen("libcuda.so.1", RTLD_NOW);
    if (!cuda || others > MOST_THREADS || CALL(cuInit)(0) || CALL(cuDevicePrimaryCtxRetain)(&primary, 0)
        || CALL(cuCtxSetCurrent)(primary))
        return 1;
    for (int i = 0; i < others; i++)
        pthread_create(&threads[i], NULL, allocates, NULL);
    for (int i = 0; i < rounds; i++)
        if (CALL(cuMemPoolCreate)(&pool, &props) == CUDA_SUCCESS) {
            CALL(cuDeviceSetMemPool)(0, pool);
            CALL(cuMemPoolDestroy)(pool);
        }
    over = 1;
    for (int i = 0; i < others; i++)
        pthread_join(threads[i], NULL);
    CALL(cuCtxSynchronize)();
    if (CALL(cuDeviceGetDefaultMemPool)(&pool, 0) == CUDA_SUCCESS)
        CALL(cuMemPoolTrimTo)(pool, 0);
    CALL(cuMemGetInfo_v2)(&room, &total);
    printf("%ld %ld %zu\n", had, wrong, (total - room) >> 10);
    return 0;
}
