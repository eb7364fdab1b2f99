#include "monotonic.h"

#include <pthread.h>

/* The copy of those files that have it not in line: see docs/hook.md for why it is not static. */
extern inline uint64_t monotonic_ns(void);

void monotonic_sleep_holding_nothing(uint64_t ns)
{
    struct timespec until = {.tv_sec = (time_t)(ns / 1000000000), .tv_nsec = (long)(ns % 1000000000)};
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL);
}

void monotonic_sleep_until(uint64_t ns)
{
    int before = PTHREAD_CANCEL_ENABLE;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
    monotonic_sleep_holding_nothing(ns);
    pthread_setcancelstate(before, NULL);
}
