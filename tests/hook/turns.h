/* Threads that take turns: one of them goes on at a time, and wherever it comes to a lock, leaves one, asks for
 * the time or sleeps, another may go on instead, by a seed. Time jumps to the end of a sleep. So what happens
 * seldom when processors decide happens often, in libraries too: these functions take the place of the C
 * library's there (link with -rdynamic). Threads that take no part, as those that libraries start, run freely.
 */
#ifndef TURNS_H
#define TURNS_H

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { MOST_TURNS = 64, SELDOM = 4, S_NS = 1000000000 };

static sem_t turns[MOST_TURNS];
static int taking_part[MOST_TURNS], parts, turns_seldom = SELDOM;
static unsigned turns_seed;
static int64_t jumped_ns;
static _Thread_local int own_turn = -1;

#define LIBC(name)                                                                                           \
    static __typeof__(&name) libc;                                                                           \
    if (!libc)                                                                                               \
    *(void **)&libc = dlsym(RTLD_NEXT, #name)

/* Called by who has the turn: another one, if there is another. */
static void another_turn(void)
{
    int others = 0, next = own_turn;
    for (int i = 0; i < MOST_TURNS; i++)
        others += taking_part[i] && i != own_turn;
    int chosen = others ? rand_r(&turns_seed) % others : 0;
    for (int i = 0; others && i < MOST_TURNS; i++)
        if (taking_part[i] && i != own_turn && chosen-- == 0)
            next = i;
    if (next == own_turn) {
        sched_yield();
        return;
    }
    sem_post(&turns[next]);
    while (sem_wait(&turns[own_turn]) != 0) { }
}

void maybe_another_turn(void);
void maybe_another_turn(void)
{
    if (own_turn >= 0 && rand_r(&turns_seed) % turns_seldom == 0)
        another_turn();
}

/* The thread waits for its first turn; the first one is let go on by turns_begin. */
static void turns_join(int number)
{
    while (sem_wait(&turns[number]) != 0) { }
    own_turn = number;
}

static void turns_leave(void)
{
    int number = own_turn, next = -1;
    own_turn = -1;
    taking_part[number] = 0;
    for (int i = 0; i < MOST_TURNS && next < 0; i++)
        next = taking_part[i] ? i : -1;
    if (next >= 0)
        sem_post(&turns[next]);
}

static void turns_prepare(int threads, unsigned seed)
{
    parts = threads;
    turns_seed = seed;
    for (int i = 0; i < MOST_TURNS; i++) {
        sem_init(&turns[i], 0, 0);
        taking_part[i] = i < threads;
    }
}

int pthread_mutex_lock(pthread_mutex_t *mutex)
{
    LIBC(pthread_mutex_lock);
    if (own_turn < 0)
        return libc(mutex);
    maybe_another_turn();
    int result;
    while ((result = pthread_mutex_trylock(mutex)) == EBUSY)
        another_turn();
    return result;
}

int pthread_mutex_unlock(pthread_mutex_t *mutex)
{
    LIBC(pthread_mutex_unlock);
    int result = libc(mutex);
    maybe_another_turn();
    return result;
}

int clock_gettime(clockid_t clock, struct timespec *time)
{
    maybe_another_turn();
    int result = (int)syscall(SYS_clock_gettime, clock, time);
    int64_t ns = time->tv_nsec + __atomic_load_n(&jumped_ns, __ATOMIC_RELAXED);
    time->tv_sec += ns / S_NS;
    time->tv_nsec = ns % S_NS;
    return result;
}

int clock_nanosleep(clockid_t clock, int flags, const struct timespec *time, struct timespec *left)
{
    struct timespec now = {0};
    if (own_turn < 0)
        return syscall(SYS_clock_nanosleep, clock, flags, time, left) == 0 ? 0 : errno;
    another_turn();
    if (flags & TIMER_ABSTIME)
        clock_gettime(clock, &now);
    int64_t ns = (time->tv_sec - now.tv_sec) * S_NS + time->tv_nsec - now.tv_nsec;
    if (ns > 0)
        __atomic_fetch_add(&jumped_ns, ns, __ATOMIC_RELAXED);
    return 0;
}

#endif
