/* Threads that allocate from one pool at the same time, as often as said: how many are refused.
 *
 * Each lock is now and then come to late, as where a thread loses its processor before it.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int cuInit(unsigned), cuDevicePrimaryCtxRetain(void **, int), cuCtxSetCurrent(void *), cuCtxSynchronize(void);
int cuMemAllocAsync(unsigned long *, unsigned long, void *), cuMemFreeAsync(unsigned long, void *);

enum { THREADS = 8, PIECE = 1 << 20, MOST_US = 300, SELDOM = 8 };

static void *context;
static pthread_barrier_t together;
static int rounds, refused;
static _Thread_local unsigned seed;

int pthread_mutex_lock(pthread_mutex_t *mutex)
{
    static int (*libc)(pthread_mutex_t *);
    if (!libc)
        *(void **)&libc = dlsym(RTLD_NEXT, "pthread_mutex_lock");
    if (seed && rand_r(&seed) % SELDOM == 0)
        usleep((unsigned)rand_r(&seed) % MOST_US);
    return libc(mutex);
}

static void *allocates(void *number)
{
    seed = (unsigned)(size_t)number;
    cuCtxSetCurrent(context);
    for (int i = 0; i < rounds; i++) {
        unsigned long address = 0;
        pthread_barrier_wait(&together);
        if (cuMemAllocAsync(&address, PIECE, NULL) != 0)
            __atomic_fetch_add(&refused, 1, __ATOMIC_RELAXED);
        pthread_barrier_wait(&together);
        if (address)
            cuMemFreeAsync(address, NULL);
        if (pthread_barrier_wait(&together) == PTHREAD_BARRIER_SERIAL_THREAD)
            cuCtxSynchronize();
    }
    return NULL;
}

int main(int count, char **words)
{
    pthread_t threads[THREADS];
    rounds = count > 1 ? atoi(words[1]) : 0;
    int begun = cuInit(0) | cuDevicePrimaryCtxRetain(&context, 0);
    pthread_barrier_init(&together, NULL, THREADS);
    for (size_t i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, allocates, (void *)(i + 1));
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    printf("%d %d\n", begun, refused);
    return 0;
}
