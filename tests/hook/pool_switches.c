/* One thread makes each of two pools the device's current one in turn, while another one allocates from that
 * as often as said, and gives it back to the pool, which keeps it: how often that was given.
 *
 * Each lock of the second thread is now and then come to late, as where it loses its processor before it.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int cuInit(unsigned), cuDevicePrimaryCtxRetain(void **, int), cuCtxSetCurrent(void *), cuCtxSynchronize(void);
int cuMemAllocAsync(unsigned long *, unsigned long, void *), cuMemFreeAsync(unsigned long, void *);
int cuMemPoolCreate(void **, const void *), cuDeviceGetDefaultMemPool(void **, int);
int cuDeviceSetMemPool(int, void *), cuMemPoolSetAttribute(void *, int, void *);

enum { PIECE = 60 << 20, PINNED = 1, ON_DEVICE = 1, RELEASE_THRESHOLD = 4, WORDS = 22, MOST_US = 100, SELDOM = 4 };

static void *pools[2];
static atomic_bool over;

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

static void *switches(void *unused)
{
    for (unsigned i = 0; !over; i++)
        cuDeviceSetMemPool(0, pools[i % 2]);
    return unused;
}

int main(int count, char **words)
{
    pthread_t thread;
    void *context;
    int properties[WORDS] = {PINNED, 0, ON_DEVICE}, given = 0;
    unsigned long all = ~0UL;
    int begun = cuInit(0) | cuDevicePrimaryCtxRetain(&context, 0) | cuCtxSetCurrent(context)
        | cuMemPoolCreate(&pools[0], properties) | cuDeviceGetDefaultMemPool(&pools[1], 0)
        | cuMemPoolSetAttribute(pools[0], RELEASE_THRESHOLD, &all)
        | cuMemPoolSetAttribute(pools[1], RELEASE_THRESHOLD, &all);
    pthread_create(&thread, NULL, switches, NULL);
    seed = 1;
    for (int i = 0; i < (count > 1 ? atoi(words[1]) : 0); i++) {
        unsigned long address = 0;
        given += cuMemAllocAsync(&address, PIECE, NULL) == 0;
        if (address)
            cuMemFreeAsync(address, NULL);
        cuCtxSynchronize();
    }
    over = true;
    pthread_join(thread, NULL);
    printf("%d %d\n", begun, given);
    return 0;
}
