/* How long cuInit takes where many processes start together: prints one JSON object, in microseconds.
 *
 *   hook_start PROCESSES [ROUNDS]
 *
 * Each process loads the driver, waits until all have, then times its cuInit, in wall-clock time and in its
 * own processor time, and stays until all have done so. Run it with and without the hook; the driver is
 * whatever libcuda.so.1 is found first.
 */
#include <dlfcn.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MOST_PROCESSES = 1000, MOST_TIMES = 1 << 18 };

struct shared {
    _Atomic int waiting, started;
    double wall_us[MOST_PROCESSES], processor_us[MOST_PROCESSES];
};

static double now_us(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec / 1e3;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* All have once nobody has the writing end open, whatever became of him. */
static void wait_for_all(const int ends[2])
{
    char nothing;
    close(ends[1]);
    while (read(ends[0], &nothing, 1) > 0) { }
}

static int be_one(struct shared *shared, int me, const int ends[2])
{
    int (*init)(unsigned);
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    *(void **)&init = library ? dlsym(library, "cuInit") : NULL;
    if (!init)
        return 1;
    shared->waiting++;
    while (!shared->started)
        usleep(200);
    double wall = now_us(CLOCK_MONOTONIC), processor = now_us(CLOCK_PROCESS_CPUTIME_ID);
    int result = init(0);
    shared->wall_us[me] = now_us(CLOCK_MONOTONIC) - wall;
    shared->processor_us[me] = now_us(CLOCK_PROCESS_CPUTIME_ID) - processor;
    wait_for_all(ends); /* to end takes time as well, which is not that of a start */
    return result;
}

static int run_round(struct shared *shared, int processes)
{
    int failed = 0, status, ends[2];
    shared->waiting = shared->started = 0;
    if (pipe(ends) != 0)
        return processes;
    for (int i = 0; i < processes; i++)
        if (fork() == 0)
            _exit(be_one(shared, i, ends));
    close(ends[1]);
    while (shared->waiting < processes)
        usleep(1000);
    shared->started = 1;
    while (wait(&status) > 0)
        failed += status != 0;
    close(ends[0]);
    return failed;
}

int main(int argc, char **argv)
{
    static double wall_us[MOST_TIMES], processor_us[MOST_TIMES];
    int processes = argc > 1 ? atoi(argv[1]) : 1, rounds = argc > 2 ? atoi(argv[2]) : 10, failed = 0;
    size_t times = 0;
    struct shared *shared =
        mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (processes < 1 || processes > MOST_PROCESSES || shared == MAP_FAILED)
        return 2;
    const char *cache = getenv("CUDA_DEVICE_MEMORY_SHARED_CACHE");
    for (int round = 0; round < rounds && times + (size_t)processes <= MOST_TIMES; round++) {
        if (cache)
            unlink(cache); /* each round is a container's first start */
        failed += run_round(shared, processes);
        for (int i = 0; i < processes; i++, times++) {
            wall_us[times] = shared->wall_us[i];
            processor_us[times] = shared->processor_us[i];
        }
    }
    qsort(wall_us, times, sizeof *wall_us, by_value);
    qsort(processor_us, times, sizeof *processor_us, by_value);
    printf("{\"measure\":\"start\",\"processes\":%d,\"rounds\":%d,\"failed\":%d,\"median_us\":%.1f,"
           "\"p99_us\":%.1f,\"most_us\":%.1f,\"processor_median_us\":%.1f,\"processor_p99_us\":%.1f}\n",
           processes, rounds, failed, wall_us[times / 2], wall_us[times * 99 / 100], wall_us[times - 1],
           processor_us[times / 2], processor_us[times * 99 / 100]);
    return failed != 0;
}
