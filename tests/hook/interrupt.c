/* A preloaded library by which a signal comes whenever room is made in a file for the first two times. */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>

#define EXPORT __attribute__((visibility("default")))

EXPORT int calls;

EXPORT int posix_fallocate(int fd, off_t offset, off_t length)
{
    int (*real)(int, off_t, off_t) = (int (*)(int, off_t, off_t))dlsym(RTLD_NEXT, "posix_fallocate");
    return ++calls <= 2 ? EINTR : real(fd, offset, length);
}
