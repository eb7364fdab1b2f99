/* One thread looks something up in what it has opened with RTLD_DEEPBIND, while another is loading a library:
 * deep_meanwhile first|again OPENED LOADING FUNCTION. Says what the function of that one gives in the end. */
#include <dlfcn.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

static sem_t loading, looked_up;

/* Called out of the library, in the midst of its loading. The other one cannot be waited for: it may have to
 * wait itself until the library is there. */
void in_the_midst(void)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec++;
    sem_post(&loading);
    sem_timedwait(&looked_up, &until);
}

static void *load(void *file)
{
    return dlopen(file, RTLD_NOW | RTLD_DEEPBIND);
}

int main(int argc, char **argv)
{
    pthread_t thread;
    void *library;
    int (*function)(void);
    sem_init(&loading, 0, 0);
    sem_init(&looked_up, 0, 0);
    if (argc != 5 || !load(argv[2]))
        return 1;
    if (strcmp(argv[1], "again") == 0) {
        dlsym(RTLD_DEFAULT, "cuInit");
        load(argv[2]);
    }
    if (pthread_create(&thread, NULL, load, argv[3]) != 0)
        return 1;
    sem_wait(&loading);
    dlsym(RTLD_DEFAULT, "cuInit");
    sem_post(&looked_up);
    pthread_join(thread, &library);
    *(void **)&function = library ? dlsym(library, argv[4]) : NULL;
    printf("%d\n", function ? function() : -1);
    return 0;
}
