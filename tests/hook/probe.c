/* The GPU's time in the time of this machine, as probes tell it: a thread that
 * is put aside at the wrong moment must not set it wrong. The GPU here is a
 * clock. Prints by how much the time of an event is off after many probes, in
 * us, at most; -1 if it is often not told.
 *
 *     probe PUT_ASIDE_US FIRST_US PPM IDLE_MS EVERY   each tenth call that
 * sends a probe takes so long after the GPU has it; the first of all waits so
 * long for the GPU; its clock is so fast; once, or after every so many looks
 * until half of them are over, nobody looks for so long
 */
#include "gpu_probe.c"
#include "past.c"
#include "residency.c"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "probe_driver.h"

enum { PROBES = 2000 };

static int64_t put_aside_ns, first_ns;
static int sent;

int clock_gettime(clockid_t clock, struct timespec *now)
{
    (void)clock;
    now_ns += 50;
    *now = (struct timespec){.tv_sec = now_ns / 1000000000, .tv_nsec = now_ns % 1000000000};
    return 0;
}

static CUresult record(CUevent event, CUstream stream)
{
    (void)stream;
    now_ns += 1000;
    event->done_ns = now_ns + (sent == 0 ? first_ns : 0);
    now_ns += ++sent % 10 == 0 ? put_aside_ns : 0;
    return CUDA_SUCCESS;
}

int main(int count, char **words)
{
    static struct probe probe;
    static struct past past;
    int64_t most_ns = 0;
    int unknown = 0;
    put_aside_ns = count > 1 ? atol(words[1]) * 1000 : 0;
    first_ns = count > 2 ? atol(words[2]) * 1000 : 0;
    clock_rate = count > 3 ? 1 + atof(words[3]) / 1e6 : 1;
    int64_t idle_ns = count > 4 ? atol(words[4]) * 1000000 : 0;
    int every = count > 5 ? atoi(words[5]) : 0;
    if (!gpu_probe_open(&probe, (CUcontext)(void *)&driver))
        return 1;
    for (int i = 0; i < PROBES; i++) {
        now_ns += (every ? i % every == 0 && i < PROBES / 2 : i == PROBES / 4) ? idle_ns : 1000000;
        gpu_probe_read(&probe, &past, 0, now_ns, true);
        gpu_probe_send(&probe, now_ns);
        struct CUevent_st event = {.done_ns = now_ns};
        int64_t told_ns = gpu_probe_time(&probe, &event);
        int64_t off_ns = told_ns > event.done_ns ? told_ns - event.done_ns : event.done_ns - told_ns;
        if (i <= PROBES / 4 * 3)
            continue;
        unknown += told_ns == 0;
        if (told_ns && off_ns > most_ns)
            most_ns = off_ns;
    }
    printf("%lld\n", unknown > PROBES / 8 ? -1 : (long long)most_ns / 1000);
    return 0;
}
