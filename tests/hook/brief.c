/* The brief lock in processes of several kinds: `brief WAY` prints how it ended for who wants what another holds.
 */
#include "brief.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { THREADS = 4, ROUNDS = 200000, CHILD_S = 20, HELD_US = 20000 };

static struct brief lock;
static long counted; /* by plain additions */
static atomic_bool let_go;

static void *count(void *nothing)
{
    for (int i = 0; i < ROUNDS; i++) {
        brief_hold(&lock);
        counted++;
        brief_let_go(&lock);
    }
    return nothing;
}

static void *want(void *ended_late)
{
    errno = EDOM;
    brief_hold(&lock);
    *(bool *)ended_late = atomic_load(&let_go) && errno == EDOM;
    brief_let_go(&lock);
    return NULL;
}

/* That no handler of fork sees; it is ended if it waits for ever. */
static int cloned(void)
{
    int status = -1;
    brief_hold(&lock);
    pid_t child = (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
    if (child == 0) {
        alarm(CHILD_S);
        brief_hold(&lock);
        brief_let_go(&lock);
        _exit(0);
    }
    waitpid(child, &status, 0);
    brief_let_go(&lock);
    return status;
}

int main(int argc, char **argv)
{
    const char *way = argc > 1 ? argv[1] : "";
    pthread_t threads[THREADS];
    bool ended_late = false;
    atomic_store(&brief_pid, getpid());
    if (strcmp(way, "cloned") == 0) {
        printf("%d\n", cloned());
    } else if (strcmp(way, "counted") == 0) {
        for (int i = 0; i < THREADS; i++)
            pthread_create(&threads[i], NULL, count, NULL);
        for (int i = 0; i < THREADS; i++)
            pthread_join(threads[i], NULL);
        printf("%ld\n", (long)THREADS * ROUNDS - counted);
    } else {
        brief_hold(&lock);
        pthread_create(&threads[0], NULL, want, &ended_late);
        usleep(HELD_US);
        atomic_store(&let_go, true);
        brief_let_go(&lock);
        pthread_join(threads[0], NULL);
        printf("%d\n", !ended_late);
    }
    return 0;
}
