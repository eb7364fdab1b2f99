/* A preloaded library that gives the hook no more host memory, and everybody else what they ask for, from
 * when `starving` is set.
 */
#include <dlfcn.h>
#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

EXPORT int starving, refused;
extern void *__libc_calloc(size_t, size_t);

static int is_refused(const void *caller)
{
    Dl_info info;
    if (!starving || !dladdr(caller, &info) || !strstr(info.dli_fname, "libvgpu"))
        return 0;
    refused++;
    errno = ENOMEM;
    return 1;
}

EXPORT void *calloc(size_t count, size_t size)
{
    return is_refused(__builtin_return_address(0)) ? NULL : __libc_calloc(count, size);
}

EXPORT void *mmap(void *address, size_t length, int protection, int flags, int fd, off_t offset)
{
    if (flags & MAP_ANONYMOUS && is_refused(__builtin_return_address(0)))
        return MAP_FAILED;
    return (void *)syscall(SYS_mmap, address, length, protection, flags, fd, offset);
}
