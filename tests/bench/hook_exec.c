/* What a preloaded library costs a program that never touches CUDA: prints one JSON object, in microseconds.
 *
 *   hook_exec ROUNDS LIBRARY...
 *
 * Every round starts a program that ends at once, this one, with each library in LD_PRELOAD, in
 * turns; "-" is none. Told are the medians of its own processor time, of the time until it was waited for,
 * and of how much more either was than with the first library of the same round.
 */
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MOST_ROUNDS = 20000, MOST_LIBRARIES = 8, WARM_UP = 20 };

struct times {
    double processor_us, wall_us;
};

static double now_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec / 1e3;
}

static double us_of(struct timeval time)
{
    return (double)time.tv_sec * 1e6 + (double)time.tv_usec;
}

static struct times run(const char *library)
{
    char preload[4200] = "LD_PRELOAD=", *none[] = {NULL}, *env[] = {preload, NULL};
    char *argv[] = {"hook_exec", NULL};
    struct rusage usage;
    pid_t pid;
    int status;
    strncat(preload, library, sizeof preload - strlen(preload) - 1);
    double began = now_us();
    if (posix_spawn(&pid, "/proc/self/exe", NULL, NULL, argv, strcmp(library, "-") == 0 ? none : env) != 0
        || wait4(pid, &status, 0, &usage) != pid || status != 0) {
        fprintf(stderr, "hook_exec: cannot run a program with %s\n", library);
        exit(1);
    }
    return (struct times){us_of(usage.ru_utime) + us_of(usage.ru_stime), now_us() - began};
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, int count)
{
    qsort(values, (size_t)count, sizeof *values, by_value);
    return values[count / 2];
}

int main(int argc, char **argv)
{
    static struct times found[MOST_LIBRARIES][MOST_ROUNDS];
    static double values[MOST_ROUNDS];
    if (argc == 1)
        return 0; /* the program that is started */
    int rounds = atoi(argv[1]), libraries = argc - 2;
    if (rounds < 1 || rounds > MOST_ROUNDS || libraries < 1 || libraries > MOST_LIBRARIES)
        return 2;
    for (int i = 0; i < libraries; i++)
        if (strcmp(argv[2 + i], "-") != 0 && access(argv[2 + i], R_OK) != 0) {
            fprintf(stderr, "hook_exec: %s is not there\n", argv[2 + i]);
            return 1; /* the loader would only warn */
        }
    for (int round = -WARM_UP; round < rounds; round++)
        for (int turn = 0; turn < libraries; turn++) {
            int i = (round + WARM_UP + turn) % libraries; /* whoever comes first finds other caches */
            found[i][round < 0 ? 0 : round] = run(argv[2 + i]);
        }
    printf("{\"measure\":\"exec\",\"rounds\":%d,\"libraries\":[", rounds);
    for (int i = 0; i < libraries; i++) {
        double told[4];
        for (int which = 0; which < 4; which++) {
            for (int round = 0; round < rounds; round++) {
                struct times one = found[i][round], first = found[0][round];
                double own = which % 2 ? one.wall_us : one.processor_us;
                double others = which % 2 ? first.wall_us : first.processor_us;
                values[round] = which < 2 ? own : own - others;
            }
            told[which] = median(values, rounds);
        }
        printf("%s{\"processor_us\":%.1f,\"wall_us\":%.1f,\"more_processor_us\":%.1f,\"more_wall_us\":%.1f}",
               i ? "," : "", told[0], told[1], told[2], told[3]);
    }
    printf("]}\n");
    return 0;
}
