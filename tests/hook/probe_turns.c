/* Whose the GPU was, as probes tell it, where who looks takes his time: between the moment from which a look
 * counts and the question to the driver lies what is asked of launches first. Others have the GPU for 2 ms of
 * each 4. Prints what is found of that, in percent.
 *
 *     probe_turns READ_US        how long that takes
 *     probe_turns READ_US ended  each turn is asked about as soon as it is seen to be over
 *     probe_turns READ_US waited and that is seen READ_US after it, by who sends no probes
 */
#include "gpu_probe.c"
#include "past.c"
#include "residency.c"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "probe_driver.h"

enum { LOOKS = 200000, WINDOW = 400 };

#define TURN_NS 2000000

int clock_gettime(clockid_t clock, struct timespec *now)
{
    (void)clock;
    *now = (struct timespec){.tv_sec = now_ns / 1000000000, .tv_nsec = now_ns % 1000000000};
    return 0;
}

static CUresult record(CUevent event, CUstream stream)
{
    (void)stream;
    int64_t others = now_ns / TURN_NS % 2;
    event->done_ns = others ? (now_ns / TURN_NS + 1) * TURN_NS : now_ns;
    return CUDA_SUCCESS;
}

int main(int count, char **words)
{
    static struct probe probe;
    static struct past past;
    int64_t read_ns = count > 1 ? atol(words[1]) * 1000 : 0, next_ns = now_ns, found_ns = 0, from_ns = 0,
            all_ns = 0;
    uint64_t random = 88172645463325252;
    bool ended = count > 2, waited = ended && strcmp(words[2], "waited") == 0;
    int64_t turns = now_ns / (2 * TURN_NS);
    if (!gpu_probe_open(&probe, (CUcontext)(void *)&driver))
        return 1;
    for (int i = 0; i < LOOKS; i++) {
        random ^= random << 13, random ^= random >> 7, random ^= random << 17;
        next_ns += 750000 + (int64_t)(random % 500000); /* as gpu_watch.c looks */
        if (waited) {
            now_ns = (turns + 1) * 2 * TURN_NS + read_ns;
            if (now_ns < next_ns)
                gpu_probe_read(&probe, &past, 0, now_ns, false);
        }
        if (!waited || now_ns >= next_ns) {
            now_ns = next_ns + (waited ? 0 : read_ns);
            gpu_probe_read(&probe, &past, 0, next_ns, true);
        }
        if (ended && now_ns / (2 * TURN_NS) != turns) {
            turns = now_ns / (2 * TURN_NS);
            found_ns += residency_away_ns(&probe.residency, (4 * turns - 3) * TURN_NS / 2, now_ns, false);
            all_ns += 2 * TURN_NS;
        }
        if (waited && now_ns < next_ns) {
            now_ns = next_ns;
            gpu_probe_read(&probe, &past, 0, next_ns, true);
        }
        gpu_probe_send(&probe, next_ns);
        if (ended || i % WINDOW)
            continue;
        if (from_ns) {
            found_ns += residency_away_ns(&probe.residency, from_ns, now_ns, false);
            all_ns += now_ns - from_ns;
        }
        from_ns = now_ns;
    }
    printf("%.1f\n", 200.0 * (double)found_ns / (double)all_ns);
    return 0;
}
