#include "clock.h"

#include <time.h>

enum { LEAST_SLEEP_NS = 20 * 1000, MOST_SLEEP_NS = 100 * 1000 * 1000 };

uint64_t clock_real_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

void clock_real_sleep(uint64_t ns)
{
    ns = ns < LEAST_SLEEP_NS ? LEAST_SLEEP_NS : ns > MOST_SLEEP_NS ? MOST_SLEEP_NS : ns;
    struct timespec left = {.tv_nsec = (long)ns};
    nanosleep(&left, NULL);
}

uint64_t clock_local_ns(const struct execution *execution)
{
    return execution->now_ns;
}

void clock_settle(struct execution *execution)
{
    (void)execution;
}

void clock_await(struct execution *execution, const struct awaited *awaited)
{
    (void)execution, (void)awaited;
}

void clock_spend(uint64_t ns)
{
    (void)ns;
}

void clock_leave(void)
{
}

void clock_forget_parent(void)
{
}
