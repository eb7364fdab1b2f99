/* A library that is opened with RTLD_DEEPBIND. What allocates 60 MiB twice gives CUDA's error, if any. */
#include <dlfcn.h>

#if defined(__x86_64__)
#define LIBCS "GLIBC_2.2.5"
#else
#define LIBCS "GLIBC_2.17"
#endif
#ifndef EARLY
#define EARLY 0
#endif

typedef int initialize(unsigned);
typedef int allocate(unsigned long long *, unsigned long);
initialize cuInit;
allocate cuMemAlloc_v2;

static int twice(initialize *init, allocate *more)
{
    unsigned long long address = 0;
    return init(0) | more(&address, 60 << 20) | more(&address, 60 << 20);
}

int linked(void)
{
    unsigned long long address = 0;
    return cuInit(0) | cuMemAlloc_v2(&address, 60 << 20) | cuMemAlloc_v2(&address, 60 << 20);
}

initialize *pointer = cuInit;
allocate *other_pointer = cuMemAlloc_v2;

int pointed_to(void)
{
    return twice(pointer, other_pointer);
}

int looked_up(void)
{
    void *driver = dlopen("libcuda.so.1", RTLD_LAZY);
    return twice(dlsym(driver, "cuInit"), dlsym(driver, "cuMemAlloc_v2"));
}

int by_version(void)
{
    void *driver = dlopen("libcuda.so.1", RTLD_LAZY);
    void *(*lookup)(void *, const char *) = dlvsym(RTLD_DEFAULT, "dlsym", LIBCS);
    return twice(lookup(driver, "cuInit"), lookup(driver, "cuMemAlloc_v2"));
}

static int in_constructor;

__attribute__((constructor)) static void construct(void)
{
    in_constructor = EARLY ? linked() : -1;
}

int constructed(void)
{
    return in_constructor;
}
