/* Looks something up while another thread of the program walks over its libraries, and goes on only afterwards:
 * deep_walk LIBRARY FUNCTION. Says what the function of the library, opened deep, gives in the end. */
#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>

static sem_t walking, looked_up;

static int wait_in_it(struct dl_phdr_info *info, size_t size, void *context)
{
    sem_post(&walking);
    sem_wait(&looked_up);
    return 1;
}

static void *walk(void *context)
{
    dl_iterate_phdr(wait_in_it, NULL);
    return NULL;
}

int main(int argc, char **argv)
{
    pthread_t thread;
    int (*function)(void);
    void *library = argc == 3 ? dlopen(argv[1], RTLD_NOW | RTLD_DEEPBIND) : NULL;
    if (!library || !dlsym(library, argv[2]))
        return 1;
    sem_init(&walking, 0, 0);
    sem_init(&looked_up, 0, 0);
    if (pthread_create(&thread, NULL, walk, NULL) != 0)
        return 1;
    sem_wait(&walking);
    *(void **)&function = dlsym(library, argv[2]);
    sem_post(&looked_up);
    pthread_join(thread, NULL);
    printf("%d\n", function());
    return 0;
}
