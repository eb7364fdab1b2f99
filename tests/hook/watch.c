/* The thread that reads measurements, at the moment at which it finds that nobody needs it any more: somebody
 * asks for it just after it has looked at the clock, and must have it. And as it then settles what is shown,
 * while others come and go. Prints what happened.
 */
#include "../../hook/gpu_watch.c"

#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { ROUNDS = 3, PATIENCE_S = 60 };

#define MOMENT_NS 1000

static pthread_t asking;
static _Atomic int rounds, polls, shows;

/* The clock of everything here: whoever reads it as the last act before the thread ends is too early by a
 * moment. */
int clock_gettime(clockid_t clock, struct timespec *now)
{
    int result = (int)syscall(SYS_clock_gettime, clock, now);
    uint64_t now_ns = (uint64_t)now->tv_sec * 1000000000 + (uint64_t)now->tv_nsec;
    bool late = now_ns > atomic_load(&asked_at_ns) + LINGER_NS;
    if (result == 0 && late && !pthread_equal(pthread_self(), asking) && atomic_load(&rounds) < ROUNDS) {
        atomic_store(&polls, 0);
        gpu_watch(now_ns + MOMENT_NS);
        atomic_fetch_add(&rounds, 1);
    }
    return result;
}

/* Of who settles: when he has said that he does it no more, another has just left it to him. */
bool gpu_time_show(void)
{
    return atomic_fetch_add(&shows, 1) < 2;
}

int64_t gpu_time_poll_every_ns(void)
{
    return 1000000;
}

bool gpu_time_poll(int place)
{
    atomic_fetch_add(&polls, place == 0);
    return false;
}

/* Whether one settles until there is nothing more to show; and nobody beside another who does. */
static bool settles_alone(void)
{
    settle();
    bool settled = atomic_exchange(&shows, 0) == 3 && !atomic_load(&settling);
    atomic_store(&settling, true);
    settle();
    bool left = atomic_load(&shows) == 1;
    atomic_store(&settling, false);
    return settled && left;
}

/* Whether who is there leaves if it was last asked at a time, and is then none. */
static bool retires(uint64_t asked_ns, uint64_t now_ns, enum watch_state then)
{
    atomic_store(&state, WATCH_THERE);
    gpu_watch(asked_ns);
    bool left = retire(now_ns);
    return atomic_exchange(&state, WATCH_NONE) == (int)then && left == (then == WATCH_NONE);
}

int main(void)
{
    uint64_t now_ns = monotonic_ns();
    asking = pthread_self();
    if (!retires(now_ns, now_ns, WATCH_THERE) || !retires(now_ns - 2 * LINGER_NS, now_ns, WATCH_NONE)) {
        printf("left who asked as it was about to, or stayed for nobody\n");
        return 1;
    }
    if (!settles_alone()) {
        printf("what is past stands\n");
        return 1;
    }
    gpu_watch(monotonic_ns());
    uint64_t until_ns = monotonic_ns() + PATIENCE_S * UINT64_C(1000000000);
    while ((atomic_load(&rounds) < ROUNDS || atomic_load(&polls) == 0) && monotonic_ns() < until_ns)
        monotonic_sleep_until(monotonic_ns() + MS_NS);
    printf("%s\n", atomic_load(&rounds) == ROUNDS && atomic_load(&polls) > 0 ? "watched" : "left alone");
    return 0;
}
