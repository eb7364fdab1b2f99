/* A preloaded library of somebody else's that stands before or behind us. What
 * it takes the place of is chosen when it is compiled; `interposer_calls`
 * counts how often it was called.
 */
#include <dlfcn.h>
#include <link.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

#if defined(__x86_64__)
#define FIRST "GLIBC_2.2.5"
#else
#define FIRST "GLIBC_2.17"
#endif

EXPORT int interposer_calls;

#ifdef DLSYM /* a tool that changes what programs find, and finds libc's dlsym                               \
                by its version */
EXPORT void *dlsym(void *handle, const char *name)
{
    static void *(*real)(void *, const char *);
    if (!real)
        real = (void *(*)(void *, const char *))dlvsym(RTLD_NEXT, "dlsym", FIRST);
    interposer_calls++;
    return handle == RTLD_NEXT || !real ? NULL : real(handle, name);
}
#endif

#ifdef CUDA /* a profiler */
EXPORT int cuMemAlloc_v2(unsigned long long *address, size_t bytes)
{
    int (*real)(unsigned long long *, size_t);
    *(void **)&real = dlsym(RTLD_NEXT, "cuMemAlloc_v2");
    return ++interposer_calls > 100 ? 77 : real ? real(address, bytes) : 78;
}
#endif

#ifdef WALK /* a cache of the list of libraries, that finds libc's function at                               \
               its first use */
EXPORT int dl_iterate_phdr(int (*callback)(struct dl_phdr_info *, size_t, void *), void *context)
{
    static int (*real)(int (*)(struct dl_phdr_info *, size_t, void *), void *);
    if (++interposer_calls > 10000)
        abort();
    if (!real)
        *(void **)&real = dlsym(RTLD_NEXT, "dl_iterate_phdr");
    return real(callback, context);
}
#endif

#ifdef DLOPEN /* a tracer that looks the driver up as soon as somebody has opened it */
EXPORT void *dlopen(const char *path, int mode)
{
    static void *(*real)(const char *, int);
    if (++interposer_calls > 1000)
        abort();
    if (!real)
        *(void **)&real = dlsym(RTLD_NEXT, "dlopen");
    void *opened = real(path, mode);
    if (opened && path && strstr(path, "libcuda.so"))
        dlsym(opened, "cuInit");
    return opened;
}
#endif

#ifdef MMAP /* a monitor of memory that allocates some of the GPU's, once it is told how */
EXPORT int (*interposer_allocates)(unsigned long long *, size_t);

EXPORT void *mmap(void *at, size_t bytes, int protection, int flags, int fd, off_t offset)
{
    static __thread int inside;
    unsigned long long address;
    if (interposer_allocates && !inside++) {
        interposer_calls++;
        interposer_allocates(&address, 4096);
        inside = 0;
    }
    return (void *)syscall(SYS_mmap, at, bytes, protection, flags, fd, offset);
}
#endif

#ifdef MALLOC /* an allocator that looks up what it stands before, while it is                               \
                 asked for memory */
EXPORT void *calloc(size_t count, size_t size)
{
    static char early[4096];
    static size_t used;
    static void *(*real)(size_t, size_t);
    static int looking;
    if (!real && looking) {
        char *memory = early + used;
        used += (count * size + 15) / 16 * 16;
        return used <= sizeof early ? memory : NULL;
    }
    looking = 1;
    if (!real)
        *(void **)&real = dlsym(RTLD_NEXT, "calloc");
    interposer_calls++;
    return real(count, size);
}
#endif

#ifdef EARLY /* looks the driver up before main, and again when the process                                  \
                ends */
static void __attribute__((constructor)) begin(void)
{
    interposer_calls += dlsym(RTLD_DEFAULT, "cuInit") == NULL;
}

static void __attribute__((destructor)) end(void)
{
    int (*get)(int *) = (int (*)(int *))dlsym(RTLD_DEFAULT, "cuDeviceGetCount");
    int count;
    if (get && get(&count) == 0)
        interposer_calls++;
}
#endif
