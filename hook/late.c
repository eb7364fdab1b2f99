/* Functions of libpthread and libdl, under their own names, found when they are first called.
 *
 * Until glibc 2.34 these were libraries of their own. To ask for them when we are loaded would cost every
 * process of the container two more libraries at exec, and end those of another libc. So this library needs
 * libc.so.6 alone, and whoever calls one of these functions reaches the real one, wherever this libc keeps
 * it. One that is missing here is easily noticed: the compiled library then needs more than libc
 * (tests/hook/test_staying_out.py).
 */
#include "loaded.h"
#include "real.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>

enum { GLIBC_ONCE_DONE = 2 };

extern void *__dso_handle;
int __register_atfork(void (*)(void), void (*)(void), void (*)(void), void *) __attribute__((weak));

/* The function that the program itself would reach; NULL in one without threads, where they are not loaded.
 */
static void *late(_Atomic(void *) *known, const char *name)
{
    void *found = atomic_load_explicit(known, memory_order_relaxed);
    dlsym_function *lookup = found ? NULL : real_dlsym();
    if (!lookup)
        return found;
    found = lookup(RTLD_DEFAULT, name);
    void *threads = found ? NULL : dlopen("libpthread.so.0", RTLD_LAZY | RTLD_NOLOAD);
    if (threads)
        found = lookup(threads, name);
    atomic_store_explicit(known, found, memory_order_relaxed);
    return found;
}

int pthread_once(pthread_once_t *once, void (*routine)(void))
{
    static _Atomic(void *) known;
    __typeof__(&pthread_once) real;
    *(void **)&real = late(&known, "pthread_once");
    if (real)
        return real(once, routine);
    if (*once == PTHREAD_ONCE_INIT) {
        routine();
        *once = GLIBC_ONCE_DONE;
    }
    return 0;
}

int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*routine)(void *),
                   void *argument)
{
    static _Atomic(void *) known;
    __typeof__(&pthread_create) real;
    *(void **)&real = late(&known, "pthread_create");
    return real ? real(thread, attributes, routine, argument) : EAGAIN;
}

int pthread_atfork(void (*prepare)(void), void (*parent)(void), void (*child)(void))
{
    static _Atomic(void *) known;
    __typeof__(&pthread_atfork) real;
    if (__register_atfork) /* where glibc keeps it; its pthread_atfork is linked into each library */
        return __register_atfork(prepare, parent, child, &__dso_handle);
    *(void **)&real = late(&known, "pthread_atfork");
    return real ? real(prepare, parent, child) : ENOMEM;
}

/* Layouts differ between releases, but not for this: the value first, and all else 0 when processes share it.
 */
int sem_init(sem_t *semaphore, int shared, unsigned value)
{
    if (!shared) {
        errno = ENOSYS;
        return -1;
    }
    memset(semaphore, 0, sizeof *semaphore);
    memcpy(semaphore, &value, sizeof value);
    return 0;
}

void *dlopen(const char *path, int mode)
{
    __typeof__(&dlopen) real;
    *(void **)&real = loaded_libc("dlopen");
    return real ? real(path, mode) : NULL;
}

char *dlerror(void)
{
    __typeof__(&dlerror) real;
    *(void **)&real = loaded_libc("dlerror");
    return real ? real() : NULL;
}

int dladdr(const void *address, Dl_info *info)
{
    __typeof__(&dladdr) real;
    *(void **)&real = loaded_libc("dladdr");
    return real ? real(address, info) : 0;
}

int pthread_attr_setstacksize(pthread_attr_t *attributes, size_t bytes)
{
    static _Atomic(void *) known;
    __typeof__(&pthread_attr_setstacksize) real;
    *(void **)&real = late(&known, "pthread_attr_setstacksize");
    return real ? real(attributes, bytes) : ENOSYS;
}

int pthread_sigmask(int how, const sigset_t *set, sigset_t *before)
{
    static _Atomic(void *) known;
    __typeof__(&pthread_sigmask) real;
    *(void **)&real = late(&known, "pthread_sigmask");
    if (real)
        return real(how, set, before);
    return sigprocmask(how, set, before) == 0 ? 0 : errno; /* a process without threads */
}
