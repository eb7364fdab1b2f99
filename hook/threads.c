#include "threads.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>

enum {
    /* Enough for us, and for the driver, and what profilers do in their callbacks. Thread-local storage of
     * the program comes out of it, too, and may need more: */
    STACK_BYTES = 1024 * 1024,
    STACK_MORE = 8, /* times as much then, */
    STACK_MOST_BYTES = 128 * 1024 * 1024, /* of which only what is used is memory */
};

bool thread_start(void *(*run)(void *), void *of)
{
    pthread_attr_t attributes;
    pthread_t thread;
    sigset_t all, before;
    if (pthread_attr_init(&attributes) != 0)
        return false;
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* inherited */
    int error = EINVAL;
    for (size_t bytes = STACK_BYTES; error == EINVAL && bytes <= STACK_MOST_BYTES; bytes *= STACK_MORE) {
        pthread_attr_setstacksize(&attributes, bytes);
        error = pthread_create(&thread, &attributes, run, of);
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    return error == 0;
}
