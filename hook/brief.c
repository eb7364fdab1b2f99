#include "brief.h"
#include "loose.h"

#include <errno.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

_Atomic int brief_pid;

enum { LOOKS = 100, MOMENT_NS = 50000 };

/* Apart, so that where it is free costs little. */
__attribute__((noinline)) static void wait_for(struct brief *lock)
{
    static const struct timespec moment = {.tv_nsec = MOMENT_NS};
    int error = errno;
    for (int i = 0; i < LOOKS; i++)
        if (!loose_load(&lock->held))
            return;
    int pid = loose_load(&brief_pid);
    if (pid && pid != (int)syscall(SYS_getpid)) /* libc's may be the parent's */
        brief_let_go(lock);
    syscall(SYS_futex, &lock->held, FUTEX_WAIT_PRIVATE, 1, &moment, NULL, 0);
    errno = error;
}

void brief_hold(struct brief *lock)
{
    while (atomic_exchange_explicit(&lock->held, 1, memory_order_acquire))
        wait_for(lock);
}
