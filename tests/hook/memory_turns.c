/* Memory of every kind that threads, which take turns (turns.h), make, use and end, each other's too.
 *
 *   memory_turns ROUNDS SEED
 *
 * Prints how many MiB of the limit are in use before and after, how often something was had and refused, and
 * how many answers were neither.
 */
#include "turns.h"

#include "cuda_abi.h"

#include <stdio.h>

enum { THREADS = 6, THINGS = 10, PAGE = 2 << 20, NON_BLOCKING = 1, FORMAT_FLOAT = 0x20 };

static void *cuda;
static unsigned seed, had, refused, wrong; /* whoever has the turn changes them */
static long rounds;
static CUcontext primary;

#define CALL(name) ((__typeof__(&name))dlsym(cuda, #name))
#define OK(name, ...) told(#name, CALL(name)(__VA_ARGS__))

static int told(const char *what, int result)
{
    had += result == CUDA_SUCCESS;
    refused += result == CUDA_ERROR_OUT_OF_MEMORY;
    if (result != CUDA_SUCCESS && result != CUDA_ERROR_OUT_OF_MEMORY && wrong++ < 20)
        fprintf(stderr, "%s: %d\n", what, result);
    return result == CUDA_SUCCESS;
}

static unsigned any(unsigned below)
{
    return (unsigned)rand_r(&seed) % below;
}

enum kind { NOTHING, PLAIN, PITCHED, ORDERED, OF_POOL, MAPPED, ARRAY, MIPMAPPED, CONTEXT, GRAPH, KINDS };

static struct thing {
    enum kind kind;
    int busy, users;
    CUdeviceptr address;
    void *handle, *pool;
    size_t bytes;
} things[THINGS];

static const CUmemAllocationProp prop = {.type = 1, .location = {.type = 1}};

static int map(struct thing *thing)
{
    CUmemAccessDesc access = {.location = prop.location, .flags = 3};
    CUmemGenericAllocationHandle handle, same;
    thing->bytes = PAGE * (1 + any(4));
    if (!OK(cuMemCreate, &handle, thing->bytes, &prop, 0))
        return 0;
    thing->handle = (void *)(uintptr_t)handle;
    if (!OK(cuMemAddressReserve, &thing->address, thing->bytes, 0, 0, 0))
        return 0;
    OK(cuMemMap, thing->address, thing->bytes, 0, handle, 0);
    OK(cuMemSetAccess, thing->address, thing->bytes, &access, 1);
    if (any(2) && OK(cuMemRetainAllocationHandle, &same, (void *)(uintptr_t)thing->address))
        OK(cuMemRelease, same);
    if (any(2)) { /* what is mapped stays */
        OK(cuMemRelease, handle);
        thing->handle = NULL;
    }
    return 1;
}

static int make_graph(struct thing *thing, CUstream stream)
{
    CUDA_MEM_ALLOC_NODE_PARAMS params = {.poolProps = {.allocType = 1, .location = {.type = 1}},
                                         .bytesize = (1 + any(12)) << 20};
    CUgraphNode node, freed;
    CUgraph graph;
    CUgraphExec exec;
    OK(cuGraphCreate, &graph, 0);
    OK(cuGraphAddMemAllocNode, &node, graph, NULL, 0, &params);
    int stays = any(2), made = 0;
    if (!stays)
        OK(cuGraphAddMemFreeNode, &freed, graph, &node, 1, params.dptr);
    if (OK(cuGraphInstantiateWithFlags, &exec, graph, stays ? GRAPH_INSTANTIATE_AUTO_FREE : 0)) {
        made = OK(cuGraphLaunch, exec, stream) && stays;
        thing->address = params.dptr;
        thing->handle = exec;
        if (!made)
            OK(cuGraphExecDestroy, exec);
    }
    OK(cuGraphDestroy, graph);
    return made;
}

static int make_context(struct thing *thing)
{
    CUcontext own, back;
    CUdeviceptr left;
    CUstream stream;
    if (!OK(cuCtxCreate_v2, &own, 0, 0))
        return 0;
    OK(cuMemAlloc_v2, &left, (1 + any(6)) << 20); /* ends with it */
    if (any(2) && OK(cuStreamCreate, &stream, NON_BLOCKING) && OK(cuMemAllocAsync, &left, 3 << 20, stream))
        OK(cuMemFreeAsync, left, stream);
    OK(cuCtxPopCurrent_v2, &back);
    thing->handle = own;
    return 1;
}

static int make(struct thing *thing, enum kind kind, CUstream stream)
{
    CUmemPoolProps props = {.allocType = 1, .location = {.type = 1}};
    CUDA_ARRAY3D_DESCRIPTOR deep = {64 + any(200), 64, 8 + any(16), FORMAT_FLOAT, 1, 0};
    size_t bytes = (1 + any(9)) << 20, pitch;
    switch (kind) {
    case PLAIN:
        return OK(cuMemAlloc_v2, &thing->address, bytes);
    case PITCHED:
        return OK(cuMemAllocPitch_v2, &thing->address, &pitch, 500, 1 + any(8000), 4);
    case ORDERED:
        return OK(cuMemAllocAsync, &thing->address, bytes, stream);
    case OF_POOL:
        if (!OK(cuMemPoolCreate, (CUmemoryPool *)&thing->pool, &props))
            return 0;
        if (OK(cuMemAllocFromPoolAsync, &thing->address, bytes, thing->pool, stream)) {
            if (any(3))
                return 1;
            OK(cuMemPoolDestroy, thing->pool); /* with what is live in it */
            thing->pool = NULL;
            return 1;
        }
        OK(cuMemPoolDestroy, thing->pool);
        return 0;
    case MAPPED:
        return map(thing);
    case ARRAY:
        return OK(cuArray3DCreate_v2, (CUarray *)&thing->handle, &deep);
    case MIPMAPPED:
        return OK(cuMipmappedArrayCreate, (CUmipmappedArray *)&thing->handle, &deep, 3);
    case CONTEXT:
        return make_context(thing);
    default:
        return make_graph(thing, stream);
    }
}

static void end(struct thing *thing, CUstream stream)
{
    switch (thing->kind) {
    case PLAIN:
    case PITCHED:
        OK(cuMemFree_v2, thing->address);
        break;
    case ORDERED:
    case OF_POOL:
        if (any(2))
            OK(cuMemFreeAsync, thing->address, stream);
        else
            OK(cuMemFree_v2, thing->address);
        if (thing->pool)
            OK(cuMemPoolDestroy, thing->pool);
        break;
    case MAPPED:
        OK(cuMemUnmap, thing->address, thing->bytes);
        OK(cuMemAddressFree, thing->address, thing->bytes);
        if (thing->handle)
            OK(cuMemRelease, (CUmemGenericAllocationHandle)(uintptr_t)thing->handle);
        break;
    case ARRAY:
        OK(cuArrayDestroy, thing->handle);
        break;
    case MIPMAPPED:
        OK(cuMipmappedArrayDestroy, thing->handle);
        break;
    case CONTEXT:
        OK(cuCtxDestroy_v2, thing->handle);
        break;
    case GRAPH:
        CALL(cuMemFreeAsync)(thing->address, stream); /* where it is there */
        OK(cuGraphExecDestroy, thing->handle);
        break;
    default:
        break;
    }
}

/* Launch the graph again, which frees what it has left, or free that. Another thread may have, or be about to:
 * then the driver refuses. */
static void use(const struct thing *thing, CUstream stream)
{
    CUresult result = any(3) ? CALL(cuGraphLaunch)(thing->handle, stream)
                             : CALL(cuMemFreeAsync)(thing->address, stream);
    if (result != CUDA_ERROR_INVALID_VALUE)
        told("use", result);
}

static void step(CUstream *stream)
{
    struct thing *thing = &things[any(THINGS)];
    CUmemoryPool pool;
    size_t room, total;
    switch (any(24)) {
    case 0:
        OK(cuStreamSynchronize, *stream);
        return;
    case 1:
        if (OK(cuDeviceGetDefaultMemPool, &pool, 0))
            OK(cuMemPoolTrimTo, pool, 0);
        return;
    case 2:
        OK(cuDeviceGraphMemTrim, 0);
        return;
    case 3:
        OK(cuMemGetInfo_v2, &room, &total);
        return;
    case 4:
        OK(cuStreamDestroy_v2, *stream);
        OK(cuStreamCreate, stream, NON_BLOCKING);
        return;
    default:
        break;
    }
    if (thing->kind == GRAPH && !thing->busy && any(6)) { /* several at once may */
        thing->users++;
        use(thing, *stream);
        thing->users--;
        return;
    }
    if (thing->busy || thing->users)
        return;
    thing->busy = 1;
    if (thing->kind != NOTHING) {
        end(thing, *stream);
        *thing = (struct thing){.busy = 1};
    } else {
        enum kind kind = 1 + any(KINDS - 1);
        *thing = (struct thing){.busy = 1};
        thing->kind = make(thing, kind, *stream) ? kind : NOTHING;
    }
    thing->busy = 0;
}

static void *work(void *number)
{
    CUstream stream = NULL;
    turns_join((int)(intptr_t)number);
    OK(cuCtxSetCurrent, primary);
    OK(cuStreamCreate, &stream, NON_BLOCKING);
    for (long i = 0; i < rounds; i++)
        step(&stream);
    OK(cuStreamSynchronize, stream);
    OK(cuStreamDestroy_v2, stream);
    turns_leave();
    return NULL;
}

static size_t in_use_mib(void)
{
    size_t room = 0, total = 0;
    OK(cuMemGetInfo_v2, &room, &total);
    return (total - room) >> 20;
}

int main(int argc, char **argv)
{
    pthread_t threads[THREADS];
    CUmemoryPool pool;
    rounds = argc > 1 ? atol(argv[1]) : 10;
    seed = argc > 2 ? (unsigned)atoi(argv[2]) : 0;
    cuda = dlopen("libcuda.so.1", RTLD_NOW);
    if (!cuda || !OK(cuInit, 0) || !OK(cuDevicePrimaryCtxRetain, &primary, 0)
        || !OK(cuCtxSetCurrent, primary))
        return 2;
    size_t before_mib = in_use_mib();
    turns_prepare(THREADS, seed);
    for (intptr_t i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, work, (void *)i);
    sem_post(&turns[0]);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < THINGS; i++)
        end(&things[i], NULL);
    OK(cuCtxSynchronize);
    if (OK(cuDeviceGetDefaultMemPool, &pool, 0))
        OK(cuMemPoolTrimTo, pool, 0);
    OK(cuDeviceGraphMemTrim, 0);
    printf("%zu %zu %u %u %u\n", before_mib, in_use_mib(), had, refused, wrong);
    return 0;
}
