#include "gpu_watch.h"
#include "gpu_time.h"
#include "monotonic.h"
#include "threads.h"

#include <pthread.h>
#include <stdlib.h>

enum { SKIPPED_MOST = 10 };

#define PATIENCE_NS (100 * MS_NS)
#define LOOK_NS (MS_NS / 20)

#define LINGER_NS (20 * MS_NS)

enum watch_state { WATCH_NONE, WATCH_THERE, WATCH_STOPPED };

static _Atomic int state;
static _Atomic bool reading, settling;
static _Atomic int forking, skipped; /* threads that are, just now, and looks that were left out for that */
static _Atomic uint64_t asked_at_ns;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void await_reading(uint64_t until_ns)
{
    for (uint64_t now_ns; atomic_load(&reading) && (now_ns = monotonic_ns()) < until_ns;)
        monotonic_sleep_until(now_ns + LOOK_NS);
}

/* The driver may be gone after this. */
static void stop_at_exit(void)
{
    atomic_store(&state, WATCH_STOPPED);
    await_reading(monotonic_ns() + PATIENCE_NS);
}

/* The child would never get a lock of the driver's that our thread holds just now. Those that fork all the
 * time let it read in between. */
static void before_fork(void)
{
    uint64_t now_ns = monotonic_ns(), until_ns = now_ns + PATIENCE_NS;
    while (atomic_load(&skipped) > SKIPPED_MOST && atomic_load(&state) == WATCH_THERE && now_ns < until_ns) {
        monotonic_sleep_until(now_ns + LOOK_NS);
        now_ns = monotonic_ns();
    }
    atomic_fetch_add(&forking, 1);
    await_reading(until_ns);
}

static void after_fork(void)
{
    atomic_fetch_sub(&forking, 1);
}

static void forget_after_fork(void)
{
    loose_store(&forking, 0);
    loose_store(&skipped, 0);
    int there = WATCH_THERE;
    atomic_compare_exchange_strong(&state, &there, WATCH_NONE);
    loose_store(&reading, false);
    loose_store(&settling, false);
}

static void prepare(void)
{
    atexit(stop_at_exit);
    pthread_atfork(before_fork, after_fork, forget_after_fork);
}

/* Whether there was anything to read. */
static bool read_all(void)
{
    atomic_store(&reading, true);
    bool any = atomic_load(&forking) > 0; /* there may be, after that */
    atomic_store(&skipped, any ? atomic_load(&skipped) + 1 : 0);
    for (int place = 0; place < MAX_DEVICES && atomic_load(&state) == WATCH_THERE; place++)
        any |= atomic_load(&forking) > 0 || gpu_time_poll(place);
    atomic_store(&reading, false);
    return any;
}

/* Who asks may look at the clock after us. */
static bool asked_lately(uint64_t now_ns)
{
    return now_ns <= atomic_load(&asked_at_ns) + LINGER_NS;
}

/* Whether nobody needs this thread any more. Who asks from then on starts another. */
static bool retire(uint64_t now_ns)
{
    int there = WATCH_THERE, none = WATCH_NONE;
    if (!atomic_compare_exchange_strong(&state, &there, WATCH_NONE))
        return true;
    return !asked_lately(now_ns) /* somebody asked while he still saw us */
        || !atomic_compare_exchange_strong(&state, &none, WATCH_THERE);
}

/* Until this process is shown to be idle: one thread, while others may come and go. Who leaves it to that one
 * is not missed: that one says that it does it no more, and then looks once more. */
static void settle(void)
{
    while (gpu_time_show() && !atomic_exchange(&settling, true)) {
        clock_nanosleep(CLOCK_MONOTONIC, 0, &(const struct timespec){.tv_sec = 1}, NULL);
        atomic_store(&settling, false);
    }
}

static void *watch(void *unused)
{
    uint64_t random = monotonic_ns() | 1, next_ns = monotonic_ns();
    (void)unused;
    while (atomic_load(&state) == WATCH_THERE) {
        if (read_all())
            atomic_store(&asked_at_ns, monotonic_ns());
        random ^= random << 13, random ^= random >> 7, random ^= random << 17;
        uint64_t now_ns = monotonic_ns(), every_ns = (uint64_t)gpu_time_poll_every_ns();
        next_ns += every_ns * 3 / 4 + random % (every_ns / 2); /* in step with nothing */
        next_ns = next_ns < now_ns ? now_ns + every_ns : next_ns;
        if (!asked_lately(now_ns) && retire(now_ns)) {
            settle();
            return NULL;
        }
        monotonic_sleep_until(next_ns);
    }
    return NULL;
}

void gpu_watch(uint64_t now_ns)
{
    int none = WATCH_NONE;
    atomic_store(&asked_at_ns, now_ns); /* before the load, and seen so by who retires */
    if (atomic_load(&state) != WATCH_NONE)
        return;
    pthread_once(&once, prepare);
    if (!atomic_compare_exchange_strong(&state, &none, WATCH_THERE) || thread_start(watch, NULL))
        return;
    read_all();
    none = WATCH_THERE;
    atomic_compare_exchange_strong(&state, &none, WATCH_NONE);
}
