/* A CUDA driver of two functions, in the shapes that drivers come in; the simulated one has but one shape.
 *
 * STUB     the toolkit's library to link against: nothing works
 * NOWHERE  does not tell the device of a context
 * DOOR     forwards to INNER, a library of the driver's name elsewhere: as soon as it is loaded, or (LAZY) at
 *          the first call
 * ENTRIES  cuGetProcAddress gives other entries to the functions than those that are exported, and under a
 *          name that meant another function before
 * FOLDED   two functions, of the same code, that the linker made one, which has a third name besides
 * SELF     looks its own functions up
 * LOUD     an allocation of ODD_BYTES is told to the program's callback, and fails
 */
#include <dlfcn.h>
#include <stdint.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

typedef unsigned long long ptr;

#ifdef DOOR
static int (*init)(unsigned), (*allocate)(ptr *, size_t), (*device)(int *), (*uuid)(char *, int);

static void open_inner(void)
{
    void *inner = init ? NULL : dlopen(INNER, RTLD_NOW);
    if (!inner)
        return;
    *(void **)&allocate = dlsym(inner, "cuMemAlloc_v2");
    *(void **)&device = dlsym(inner, "cuCtxGetDevice");
    *(void **)&uuid = dlsym(inner, "cuDeviceGetUuid");
    *(void **)&init = dlsym(inner, "cuInit");
}

#ifndef LAZY
static void __attribute__((constructor)) loaded(void)
{
    open_inner();
}
#endif
#endif

#ifdef LOUD
enum { ODD_BYTES = 13 };

typedef void (*told)(void *data, int level, char *message, size_t length);
static told listener;
static void *its_data;

EXPORT int cuLogsRegisterCallback(told callback, void *data, void **handle)
{
    listener = callback;
    its_data = data;
    *handle = &listener;
    return 0;
}
#endif

static ptr next = 0x1000;

static int allocated(ptr *address, size_t bytes)
{
#ifdef LOUD
    if (bytes == ODD_BYTES) {
        listener(its_data, 0, (char[]){"odd"}, 3);
        return 1;
    }
#endif
    *address = next;
    next += bytes;
    return 0;
}

EXPORT int cuInit(unsigned flags)
{
#ifdef DOOR
    open_inner();
    return init(flags);
#elif defined STUB
    return 34;
#else
    return flags ? 1 : 0;
#endif
}

#ifndef NOWHERE
EXPORT int cuCtxGetDevice(int *into)
{
#ifdef DOOR
    open_inner();
    return device(into);
#else
    *into = 0;
    return 0;
#endif
}
#endif

EXPORT int cuDeviceGetUuid(char *into, int ordinal)
{
#ifdef DOOR
    open_inner();
    return uuid(into, ordinal);
#else
    for (int i = 0; i < 16; i++)
        into[i] = (char)(i + ordinal);
    return 0;
#endif
}

EXPORT int cuMemAlloc_v2(ptr *address, size_t bytes)
{
#ifdef DOOR
    open_inner();
    return allocate(address, bytes);
#elif defined STUB
    return 34;
#else
    return allocated(address, bytes);
#endif
}

#ifdef ENTRIES
EXPORT int cuGraphInstantiateWithFlags(void **executable, void *graph, unsigned long long flags)
{
    return executable && graph ? (int)flags : 1;
}

static int entry(ptr *address, size_t bytes)
{
    return allocated(address, bytes);
}

static int of_a_later_abi(ptr *address, size_t bytes, int more)
{
    return allocated(address, bytes) + more;
}

EXPORT int cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *status)
{
    (void)flags;
    *function = NULL;
    if (strcmp(name, "cuMemAlloc") == 0 && version >= 3020)
        *function = version < 14000 ? (void *)&entry : (void *)&of_a_later_abi;
    if (strcmp(name, "cuGraphInstantiateWithFlags") == 0 && version >= 11040)
        *function = (void *)&cuGraphInstantiateWithFlags;
    if (strcmp(name, "cuGraphInstantiate") == 0 && version >= 12000)
        *function = (void *)&cuGraphInstantiateWithFlags;
    if (status)
        *status = *function ? 0 : 1;
    return *function ? 0 : 500;
}
#endif

#ifdef FOLDED
EXPORT int cuMemFree_v2(ptr address)
{
    return address ? 0 : 1;
}

EXPORT int cuArrayDestroy(ptr) __attribute__((alias("cuMemFree_v2")));

EXPORT int cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *status)
{
    (void)version, (void)flags;
    int its = strcmp(name, "cuMemFree") == 0 || strcmp(name, "cuArrayDestroy") == 0
        || strcmp(name, "cuGiveBack") == 0;
    *function = its ? (void *)&cuMemFree_v2 : NULL;
    if (status)
        *status = its ? 0 : 1;
    return its ? 0 : 500;
}
#endif

#ifdef SELF
EXPORT int looks_itself_up(const char *path)
{
    void *handle = dlopen(path, RTLD_LAZY | RTLD_NOLOAD);
    return handle && dlsym(handle, "cuMemAlloc_v2") == (void *)&cuMemAlloc_v2;
}
#endif
