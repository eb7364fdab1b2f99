/* Linked into a program, puts all of it under the simulated driver's virtual clock: its own time functions
 * replace those of the C library, for the program and for every library in it (link with -rdynamic).
 *
 * Until virtual_time_join(), and for threads that take no part, they are the real ones. Processor time stays
 * real. Waiting for other threads in any other way than pthread_join (mutexes, conditions) is not known to
 * the clock: it is found out after a while of real time.
 */
#include "virtual_time.h"

#include "virtual_clock.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define S_NS (1000ULL * 1000 * 1000)
#define JOIN_NS (100ULL * 1000) /* between two looks whether a thread is over */
#define EPOCH_NS (1700000000ULL * S_NS) /* of the virtual calendar */

static struct {
    __typeof__(&sim_clock_join) join;
    __typeof__(&sim_clock_joined) joined;
    __typeof__(&sim_clock_new_thread) new_thread;
    __typeof__(&sim_clock_enter) enter;
    __typeof__(&sim_clock_leave) leave;
    __typeof__(&sim_clock_read) read;
    __typeof__(&sim_clock_now) now;
    __typeof__(&sim_clock_sleep_until) sleep_until;
} virtual;
static bool there;
static uint64_t quota_on_ns, quota_period_ns; /* 0: there is none */

#define FIND(name) (*(void **)&virtual.name = dlsym(libcuda, "sim_clock_" #name))

bool virtual_time_join(void *libcuda, unsigned processes, unsigned rank)
{
    int (*processor)(void);
    *(void **)&processor = dlsym(libcuda, "sim_clock_processor");
    there = FIND(join) && FIND(joined) && FIND(new_thread) && FIND(enter) && FIND(leave) && FIND(read)
        && FIND(now) && FIND(sleep_until);
    cpu_set_t one;
    CPU_ZERO(&one);
    if (there && processor && processor() >= 0) {
        CPU_SET(processor(), &one);
        sched_setaffinity(0, sizeof one, &one);
    }
    return there && virtual.join(processes, rank) == 0;
}

void virtual_time_quota(uint64_t on_ns, uint64_t period_ns)
{
    quota_on_ns = on_ns;
    quota_period_ns = period_ns;
}

/* When a thread goes on that would wake at `ns`. */
static uint64_t let_run_at(uint64_t ns)
{
    uint64_t now_ns = virtual.read();
    ns = ns > now_ns ? ns : now_ns;
    return quota_period_ns && ns % quota_period_ns >= quota_on_ns
        ? ns - ns % quota_period_ns + quota_period_ns
        : ns;
}

static bool takes_part(void)
{
    return there && virtual.joined();
}

static struct timespec split(uint64_t ns)
{
    return (struct timespec){.tv_sec = (time_t)(ns / S_NS), .tv_nsec = (long)(ns % S_NS)};
}

static uint64_t joint(const struct timespec *time)
{
    return time->tv_sec < 0 ? 0 : (uint64_t)time->tv_sec * S_NS + (uint64_t)time->tv_nsec;
}

/* Whether who reads the clock may hold a lock that others wait for, as they would while it waits for its
 * turn.
 */
#ifndef READS_WITH_A_LOCK
#define READS_WITH_A_LOCK(caller) ((void)(caller), false)
#endif

/* --- reading -------------------------------------------------------------------------------------------- */

int clock_gettime(clockid_t clock, struct timespec *now)
{
    bool calendar = clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE;
    bool monotonic = clock == CLOCK_MONOTONIC || clock == CLOCK_MONOTONIC_COARSE
        || clock == CLOCK_MONOTONIC_RAW || clock == CLOCK_BOOTTIME;
    if (!takes_part() || (!calendar && !monotonic))
        return (int)syscall(SYS_clock_gettime, clock, now);
    uint64_t ns = READS_WITH_A_LOCK(__builtin_return_address(0)) ? virtual.now() : virtual.read();
    *now = split(ns + (calendar ? EPOCH_NS : 0));
    return 0;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone)
{
    struct timespec precise;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &precise);
    *now = (struct timeval){.tv_sec = precise.tv_sec, .tv_usec = precise.tv_nsec / 1000};
    return 0;
}

time_t time(time_t *now)
{
    struct timespec precise;
    clock_gettime(CLOCK_REALTIME, &precise);
    if (now)
        *now = precise.tv_sec;
    return precise.tv_sec;
}

/* --- sleeping ------------------------------------------------------------------------------------------- */

int clock_nanosleep(clockid_t clock, int flags, const struct timespec *time, struct timespec *left)
{
    if (!takes_part())
        return syscall(SYS_clock_nanosleep, clock, flags, time, left) == 0 ? 0 : errno;
    uint64_t ns = joint(time);
    if (!(flags & TIMER_ABSTIME))
        ns += virtual.read();
    else if (clock == CLOCK_REALTIME)
        ns = ns > EPOCH_NS ? ns - EPOCH_NS : 0;
    virtual.sleep_until(quota_period_ns ? let_run_at(ns) : ns);
    return 0;
}

int nanosleep(const struct timespec *time, struct timespec *left)
{
    if (!takes_part())
        return (int)syscall(SYS_nanosleep, time, left);
    return clock_nanosleep(CLOCK_MONOTONIC, 0, time, left);
}

int usleep(useconds_t us)
{
    struct timespec time = split(us * 1000ULL);
    return nanosleep(&time, NULL);
}

int sched_yield(void)
{
    if (takes_part())
        virtual.sleep_until(0);
    return 0;
}

/* --- threads -------------------------------------------------------------------------------------------- */

struct beginning {
    struct beginning *next;
    void *(*routine)(void *);
    void *argument;
    unsigned thread;
    pthread_t handle;
    _Atomic bool over;
};

static struct beginning *_Atomic begun; /* newest first; they stay */

static void end_thread(void *beginning)
{
    atomic_store(&((struct beginning *)beginning)->over, true);
    virtual.leave(0);
}

static void *begin_thread(void *argument)
{
    struct beginning *beginning = argument;
    void *result;
    virtual.enter(beginning->thread);
    pthread_cleanup_push(end_thread, beginning); /* also by pthread_exit */
    result = beginning->routine(beginning->argument);
    pthread_cleanup_pop(1);
    return result;
}

typedef int create_function(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
typedef int join_function(pthread_t, void **);

int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*routine)(void *),
                   void *argument)
{
    create_function *real;
    *(void **)&real = dlsym(RTLD_NEXT, "pthread_create");
    struct beginning *beginning = takes_part() ? malloc(sizeof *beginning) : NULL;
    if (!beginning)
        return real(thread, attributes, routine, argument);
    *beginning = (struct beginning){.routine = routine, .argument = argument, .thread = virtual.new_thread()};
    int result = real(thread, attributes, begin_thread, beginning);
    if (result != 0) {
        virtual.leave(beginning->thread);
        free(beginning);
        return result;
    }
    beginning->handle = *thread;
    beginning->next = atomic_load(&begun);
    while (!atomic_compare_exchange_weak(&begun, &beginning->next, beginning)) { }
    return 0;
}

int pthread_join(pthread_t thread, void **result)
{
    join_function *real;
    *(void **)&real = dlsym(RTLD_NEXT, "pthread_join");
    struct beginning *beginning = takes_part() ? atomic_load(&begun) : NULL;
    while (beginning && !pthread_equal(beginning->handle, thread))
        beginning = beginning->next;
    while (beginning && !atomic_load(&beginning->over))
        virtual.sleep_until(virtual.read() + JOIN_NS);
    return real(thread, result); /* which does not take long now */
}
