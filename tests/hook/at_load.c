/* A library that makes a call of the driver, CALL, while it is loaded or (AT_END) unloaded: its constructor
 * starts a thread that does so and waits for it, as pools of workers do. The loader holds its lock meanwhile.
 */
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

typedef void *handle;
typedef uint64_t ptr;

struct allocation {
    int type, handle_types, location, device;
    handle security;
    unsigned char flags[8];
};

int cuDevicePrimaryCtxRetain(handle *, int), cuCtxSetCurrent(handle), cuMemAlloc_v2(ptr *, size_t);
int cuMemAllocAsync(ptr *, size_t, handle), cuMemGetInfo_v2(size_t *, size_t *);
int cuMemCreate(ptr *, size_t, const struct allocation *, uint64_t), cuModuleLoadData(handle *, const char *);
int cuModuleGetFunction(handle *, handle, const char *), cuStreamCreate(handle *, unsigned);
int cuStreamBeginCapture_v2(handle, int), cuStreamEndCapture(handle, handle *);
int cuLaunchKernel(handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, handle,
                   handle *, handle *);

#define EXPORT __attribute__((visibility("default")))

EXPORT int own_result = -1;
EXPORT int *result = &own_result; /* or where the program wants it */

enum { PAGE = 2 << 20, NON_BLOCKING = 1, RELAXED = 2 };

int allocate(void)
{
    ptr address;
    return cuMemAlloc_v2(&address, PAGE);
}

int from_pool(void)
{
    ptr address;
    return cuMemAllocAsync(&address, PAGE, NULL);
}

int physical(void)
{
    ptr memory;
    return cuMemCreate(&memory, PAGE, &(struct allocation){.type = 1, .location = 1}, 0);
}

int load(void)
{
    handle module;
    return cuModuleLoadData(&module, "image");
}

int graph(void)
{
    handle stream, made;
    ptr address;
    return cuStreamCreate(&stream, NON_BLOCKING) || cuStreamBeginCapture_v2(stream, RELAXED)
        || cuMemAllocAsync(&address, PAGE, stream) || cuStreamEndCapture(stream, &made);
}

int launch(void)
{
    handle module, kernel;
    return cuModuleLoadData(&module, "image") || cuModuleGetFunction(&kernel, module, "k")
        || cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL);
}

int look(void)
{
    size_t left, total;
    return cuMemGetInfo_v2(&left, &total);
}

static void *work(void *nothing)
{
    handle context;
    int failed = cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context);
    *result = failed ? failed : CALL();
    return nothing;
}

#ifdef AT_END
static void __attribute__((destructor)) end(void)
#else
static void __attribute__((constructor)) begin(void)
#endif
{
    pthread_t worker;
    if (pthread_create(&worker, NULL, work, NULL) == 0)
        pthread_join(worker, NULL);
}
