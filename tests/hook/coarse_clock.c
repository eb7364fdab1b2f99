/* Preloaded: a program's coarse clock shows what the program says, once it has said something. */
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

long long shown_ns;

int clock_gettime(clockid_t clock, struct timespec *now)
{
    if (clock != CLOCK_MONOTONIC_COARSE || !shown_ns)
        return (int)syscall(SYS_clock_gettime, clock, now);
    now->tv_sec = shown_ns / 1000000000;
    now->tv_nsec = shown_ns % 1000000000;
    return 0;
}
