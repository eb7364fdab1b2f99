/* Preloaded, it lets all clocks of a process run as fast as a file says, with waits that end as much earlier,
 * and jump as far as it says.
 *
 * The file of VGPU_TEST_CLOCKS: when they began to run so fast (ns of CLOCK_MONOTONIC), how far they were ahead
 * then (ns), how fast they run, by how much the clock of the day is shifted (s) and the one that counts sleep (s).
 * CLOCK_MONOTONIC does not jump, nor does Linux let it. What waits by a system call of its own, as gRPC's threads
 * do, waits as long as ever.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define NS 1000000000LL

static volatile long long *told; /* began, ahead, how fast; jumps of the day, since boot */

static int known(void)
{
    if (!told) {
        const char *path = getenv("VGPU_TEST_CLOCKS");
        int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
        void *at = fd < 0 ? MAP_FAILED : mmap(0, 40, PROT_READ, MAP_SHARED, fd, 0);
        if (fd >= 0)
            close(fd);
        if (at == MAP_FAILED)
            return 0;
        told = at;
    }
    return 1;
}

static long long real_ns(clockid_t clock)
{
    struct timespec at = {0, 0};
    syscall(SYS_clock_gettime, clock, &at);
    return at.tv_sec * NS + at.tv_nsec;
}

static long long ahead_ns(clockid_t clock)
{
    if (!known())
        return 0;
    long long jump = clock == CLOCK_REALTIME ? told[3] : clock == CLOCK_BOOTTIME ? told[4] : 0;
    return told[1] + (real_ns(CLOCK_MONOTONIC) - told[0]) * (told[2] - 1) + jump * NS;
}

static long long slower(long long ns)
{
    return known() && told[2] > 1 && ns > 0 ? ns / told[2] + 1 : ns;
}

static struct timespec of(long long ns)
{
    struct timespec at = {ns / NS, ns % NS};
    return at;
}

/* A deadline by our clock as one by the kernel's. */
static struct timespec deadline(clockid_t clock, const struct timespec *ours)
{
    long long real = real_ns(clock);
    return of(real + slower(ours->tv_sec * NS + ours->tv_nsec - real - ahead_ns(clock)));
}

int clock_gettime(clockid_t clock, struct timespec *now)
{
    int failed = (int)syscall(SYS_clock_gettime, clock, now);
    if (!failed && clock != CLOCK_PROCESS_CPUTIME_ID && clock != CLOCK_THREAD_CPUTIME_ID)
        *now = of(now->tv_sec * NS + now->tv_nsec + ahead_ns(clock));
    return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone)
{
    struct timespec at;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &at);
    now->tv_sec = at.tv_sec;
    now->tv_usec = at.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *out)
{
    struct timespec at;
    clock_gettime(CLOCK_REALTIME, &at);
    if (out)
        *out = at.tv_sec;
    return at.tv_sec;
}

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define NEW(name) ((__typeof__(&name))dlvsym(RTLD_NEXT, #name, "GLIBC_2.3.2"))

int clock_nanosleep(clockid_t clock, int flags, const struct timespec *wanted, struct timespec *left)
{
    struct timespec at = flags & TIMER_ABSTIME ? deadline(clock, wanted) : of(slower(wanted->tv_sec * NS + wanted->tv_nsec));
    return NEXT(clock_nanosleep)(clock, flags, &at, left);
}

int nanosleep(const struct timespec *wanted, struct timespec *left)
{
    struct timespec at = of(slower(wanted->tv_sec * NS + wanted->tv_nsec));
    return NEXT(nanosleep)(&at, left);
}

int poll(struct pollfd *fds, nfds_t count, int ms)
{
    return NEXT(poll)(fds, count, ms > 0 ? (int)(slower(ms * 1000000LL) / 1000000) + 1 : ms);
}

int epoll_wait(int fd, struct epoll_event *events, int count, int ms)
{
    return NEXT(epoll_wait)(fd, events, count, ms > 0 ? (int)(slower(ms * 1000000LL) / 1000000) + 1 : ms);
}

int select(int count, fd_set *r, fd_set *w, fd_set *e, struct timeval *wanted)
{
    struct timeval at;
    if (wanted) {
        long long ns = slower(wanted->tv_sec * NS + wanted->tv_usec * 1000LL);
        at.tv_sec = ns / NS;
        at.tv_usec = ns % NS / 1000;
    }
    return NEXT(select)(count, r, w, e, wanted ? &at : 0);
}

int sem_timedwait(sem_t *semaphore, const struct timespec *until)
{
    struct timespec at = deadline(CLOCK_REALTIME, until);
    return NEXT(sem_timedwait)(semaphore, &at);
}

int sem_clockwait(sem_t *semaphore, clockid_t clock, const struct timespec *until)
{
    struct timespec at = deadline(clock, until);
    return NEXT(sem_clockwait)(semaphore, clock, &at);
}

int pthread_cond_timedwait(pthread_cond_t *condition, pthread_mutex_t *mutex, const struct timespec *until)
{
    /* Python's are made for CLOCK_MONOTONIC; whoever's are not wait too long, or not at all. */
    struct timespec at = deadline(CLOCK_MONOTONIC, until);
    return NEW(pthread_cond_timedwait)(condition, mutex, &at);
}
