/* The thread that reads measurements, as the program forks: it takes a lock of the driver's for a while, time
 * after time, and the child wants that one. Prints how many children found it held, and whether the thread went
 * on after.
 */
#include "../../hook/gpu_watch.c"

#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

enum { FORKS = 100, PATIENCE_MS = 60000 };

static pthread_mutex_t drivers = PTHREAD_MUTEX_INITIALIZER;
static _Atomic int polls;

bool gpu_time_show(void)
{
    return false;
}

int64_t gpu_time_poll_every_ns(void)
{
    return 1000000;
}

bool gpu_time_poll(int place)
{
    if (place)
        return false;
    pthread_mutex_lock(&drivers);
    monotonic_sleep_until(monotonic_ns() + MS_NS / 2);
    pthread_mutex_unlock(&drivers);
    atomic_fetch_add(&polls, 1);
    return true;
}

/* Until it has read once more; false: it does not. */
static bool reads(void)
{
    int before = atomic_load(&polls);
    for (int ms = 0; ms < PATIENCE_MS && atomic_load(&polls) == before; ms++)
        monotonic_sleep_until(monotonic_ns() + MS_NS);
    return atomic_load(&polls) != before;
}

int main(void)
{
    int held = 0;
    gpu_watch(monotonic_ns());
    for (int i = 0; i < FORKS; i++) {
        monotonic_sleep_until(monotonic_ns() + MS_NS + (uint64_t)i * 37 * MS_NS / FORKS % MS_NS);
        int status = 1;
        pid_t child = fork();
        if (child == 0)
            _exit(pthread_mutex_trylock(&drivers) != 0);
        if (child < 0 || waitpid(child, &status, 0) != child)
            return 1;
        held += status != 0;
    }
    int on = reads();
    printf("%d of %d held; read on: %d\n", held, FORKS, on);
    return 0;
}
