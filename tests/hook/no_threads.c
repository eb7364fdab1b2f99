/* No thread can be started in a program that preloads this. */
#include <errno.h>
#include <pthread.h>

int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*routine)(void *),
                   void *argument)
{
    (void)thread, (void)attributes, (void)routine, (void)argument;
    return EAGAIN;
}
