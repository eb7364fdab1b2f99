/* Lives of a process that uses CUDA: lives NAME; prints the CUresults that
 * matter, child before parent. */
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

enum { THREADS = 32 };

typedef unsigned long long ptr;

static void *driver(const char *name)
{
    return dlsym(dlopen("libcuda.so.1", RTLD_LAZY), name);
}

static int call_init(void)
{
    return ((int (*)(unsigned))driver("cuInit"))(0);
}

static int start(void)
{
    void *context;
    int result = call_init();
    result |= ((int (*)(void **, int))driver("cuDevicePrimaryCtxRetain"))(&context, 0);
    return result | ((int (*)(void *))driver("cuCtxSetCurrent"))(context);
}

static int allocate(unsigned mib)
{
    ptr address;
    return ((int (*)(ptr *, size_t))driver("cuMemAlloc_v2"))(&address, (size_t)mib << 20);
}

static int start_and_fill(void)
{
    return start() | allocate(60);
}

static void tell(const char *who, int start, int result)
{
    printf("%s %d %d\n", who, start, result);
    fflush(stdout);
}

/* In this order, which arguments have none of. */
static void start_and_tell(const char *who, int (*begin)(void), unsigned mib)
{
    int started = begin();
    tell(who, started, allocate(mib));
}

static void in_child(pid_t child, const char *who, int (*before)(void))
{
    if (child == 0) {
        int started = before ? before() : 0;
        tell(who, started, allocate(10));
        _exit(0);
    }
    waitpid(child, NULL, 0);
}

static pthread_barrier_t barrier;
static int results[THREADS];

static void *race(void *at)
{
    pthread_barrier_wait(&barrier);
    *(int *)at = start() | allocate(9);
    return NULL;
}

static void all_at_once(void)
{
    pthread_t threads[THREADS];
    int given = 0, refused = 0;
    pthread_barrier_init(&barrier, NULL, THREADS);
    for (int i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, race, &results[i]);
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        given += results[i] == 0;
        refused += results[i] == 2;
    }
    tell("threads", given, refused);
}

static volatile sig_atomic_t interrupted;

static void *opened;

static void look_up(int signal)
{
    (void)signal;
    interrupted += dlsym(opened, "cuMemAlloc_v2") != NULL;
}

static void interrupted_lookups(void)
{
    struct itimerval often = {{0, 200}, {0, 200}};
    opened = dlopen("libcuda.so.1", RTLD_LAZY);
    signal(SIGALRM, look_up);
    setitimer(ITIMER_REAL, &often, NULL);
    while (interrupted < 50)
        continue; /* libc's own dlsym can hang when it interrupts itself */
    setitimer(ITIMER_REAL, &(struct itimerval){{0, 0}, {0, 0}}, NULL);
    start_and_tell("signals", start, 10);
}

static void at_the_end(void)
{
    size_t room, total;
    usleep(150000); /* long enough for it to look for the dead again */
    int result = ((int (*)(size_t *, size_t *))driver("cuMemGetInfo_v2"))(&room, &total);
    tell("end", result, allocate(60));
}

/* Without a preload, by the name of a file, as a plugin is. */
static void opened_and_closed(const char *library)
{
    void *hook = dlopen(library, RTLD_NOW);
    int (*init)(unsigned) = (int (*)(unsigned))dlsym(hook, "cuInit");
    int (*retain)(void **, int) = (int (*)(void **, int))dlsym(hook, "cuDevicePrimaryCtxRetain");
    void *context;
    int started = init(0) | retain(&context, 0);
    tell("opened", started, dlclose(hook));
    in_child(fork(), "child", NULL);
}

static void *begin(void *unused)
{
    (void)unused;
    call_init();
    pthread_testcancel();
    return NULL;
}

/* One that waits for the usage region, which others have locked until they read a line of ours. */
static void cancelled_at_its_beginning(void)
{
    pthread_t thread;
    void *end;
    pthread_create(&thread, NULL, begin, NULL);
    usleep(300000); /* until it waits */
    pthread_cancel(thread);
    tell("cancelled", 0, 0);
    pthread_join(thread, &end);
    start_and_tell(end == PTHREAD_CANCELED ? "another" : "not cancelled", call_init, 60);
}

static void *begin_cancelled(void *unused)
{
    pthread_cancel(pthread_self());
    return begin(unused);
}

/* One that cannot begin, of which a line is written meanwhile. */
static void cancelled_as_it_fails(void)
{
    pthread_t thread;
    void *end;
    pthread_create(&thread, NULL, begin_cancelled, NULL);
    pthread_join(thread, &end);
    tell(end == PTHREAD_CANCELED ? "another" : "not cancelled", call_init(), 0);
}

#ifdef EARLY
static void __attribute__((constructor)) before_main(void)
{
    start_and_tell("constructor", start_and_fill, 60);
}
#endif

int main(int argc, char **argv)
{
    const char *life = argc > 1 ? argv[1] : "";
    if (strcmp(life, "fork first") == 0) {
        in_child(fork(), "child", start);
        start_and_tell("parent", start, 60);
    } else if (strcmp(life, "fork after") == 0) {
        int started = start_and_fill();
        in_child(fork(), "child", NULL);
        tell("parent", started, allocate(30));
    } else if (strcmp(life, "clone after") == 0) {
        int started = start_and_fill();
        in_child((pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0), "child", NULL);
        tell("parent", started, allocate(30));
    } else if (strcmp(life, "vfork") == 0) {
        int started = start_and_fill();
        pid_t child = vfork();
        if (child == 0) {
            execl(argv[0], argv[0], "one", NULL);
            _exit(1);
        }
        waitpid(child, NULL, 0);
        tell("parent", started, allocate(30));
    } else if (strcmp(life, "exec") == 0) {
        start_and_tell("before", start_and_fill, 60);
        execl(argv[0], argv[0], "one", NULL);
    } else if (strcmp(life, "one") == 0) {
        start_and_tell("new", start, 30);
    } else if (strcmp(life, "threads") == 0) {
        all_at_once();
    } else if (strcmp(life, "signals") == 0) {
        interrupted_lookups();
    } else if (strcmp(life, "end") == 0) {
        tell("main", start_and_fill(), 0);
        atexit(at_the_end);
    } else if (strcmp(life, "end of who came first") == 0) {
        atexit(at_the_end);
        tell("main", start_and_fill(), 0);
    } else if (strcmp(life, "cancelled") == 0) {
        cancelled_at_its_beginning();
    } else if (strcmp(life, "cancelled as it fails") == 0) {
        cancelled_as_it_fails();
    } else if (argc > 2 && strcmp(life, "closed") == 0) {
        opened_and_closed(argv[2]);
    }
    return 0;
}
