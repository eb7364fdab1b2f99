/* A program of the CUDA runtime: allocates in every way that it has, and runs a kernel.
 *
 *     runtime_calls SMALL_MIB LARGE_MIB
 *
 * prints a line for each way: what it returns for a small block, for a large one beside that, for giving the
 * small one back, and for a large one then; and for all else what it returns, and what it told. What is freed
 * in a stream is there again when the device has been waited for.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MIB ((size_t)1 << 20)

enum { LIMIT_MALLOC_HEAP_SIZE = 2, ATTACH_GLOBAL = 1, CAPTURE_GLOBAL = 0, KIND_FLOAT = 2 };
enum { CUDA_OF_THE_LOOKUP = 12000, PROPERTIES_BYTES = 4096, TOTAL_AT = 288 }; /* of cudaDeviceProp */

struct channels {
    int x, y, z, w, kind;
};

typedef struct {
    unsigned x, y, z;
} dim3;

int cudaMalloc(void **, size_t), cudaFree(void *), cudaMallocManaged(void **, size_t, unsigned);
int cudaMallocPitch(void **, size_t *, size_t, size_t), cudaMallocHost(void **, size_t), cudaFreeHost(void *);
int cudaMallocAsync(void **, size_t, void *), cudaFreeAsync(void *, void *);
int cudaMallocArray(void **, const struct channels *, size_t, size_t, unsigned), cudaFreeArray(void *);
int cudaMemGetInfo(size_t *, size_t *), cudaDeviceSynchronize(void), cudaDeviceReset(void);
int cudaDeviceGetLimit(size_t *, int), cudaDeviceSetLimit(int, size_t);
int cudaGetDriverEntryPointByVersion(const char *, void **, unsigned, unsigned long long, int *);
int cudaStreamCreate(void **), cudaStreamSynchronize(void *), cudaStreamDestroy(void *);
int cudaEventCreate(void **), cudaEventRecord(void *, void *), cudaEventSynchronize(void *);
int cudaEventElapsedTime(float *, void *, void *), cudaEventDestroy(void *);
int cudaLibraryLoadData(void **, const void *, void *, void *, unsigned, void *, void *, unsigned);
int cudaLibraryGetKernel(void **, void *, const char *), cudaLibraryUnload(void *);
int cudaLaunchKernel(const void *, dim3, dim3, void **, size_t, void *);
int cudaStreamBeginCapture(void *, int), cudaStreamEndCapture(void *, void **);
int cudaGraphInstantiate(void **, void *, unsigned long long), cudaGraphLaunch(void *, void *);
int cudaGraphExecDestroy(void *), cudaGraphDestroy(void *);
int PROPERTIES(void *, int); /* cudaGetDeviceProperties, as this release exports it */

static int managed(void **memory, size_t bytes)
{
    return cudaMallocManaged(memory, bytes, ATTACH_GLOBAL);
}

static int pitched(void **memory, size_t bytes)
{
    size_t pitch;
    return cudaMallocPitch(memory, &pitch, MIB, bytes / MIB);
}

static int in_order(void **memory, size_t bytes)
{
    return cudaMallocAsync(memory, bytes, NULL);
}

static int free_in_order(void *memory)
{
    return cudaFreeAsync(memory, NULL);
}

static int array(void **memory, size_t bytes)
{
    const struct channels one = {.x = 32, .kind = KIND_FLOAT};
    return cudaMallocArray(memory, &one, MIB / 64, bytes / (MIB / 16), 0);
}

static const struct way {
    const char *name;
    int (*take)(void **, size_t);
    int (*give)(void *);
} ways[] = {
    {"cudaMalloc", cudaMalloc, cudaFree},
    {"cudaMallocManaged", managed, cudaFree},
    {"cudaMallocPitch", pitched, cudaFree},
    {"cudaMallocAsync", in_order, free_in_order},
    {"cudaMallocArray", array, cudaFreeArray},
    {"cudaMallocHost", cudaMallocHost, cudaFreeHost},
};

/* Takes a block and gives it back. */
static int visit(const struct way *way, size_t bytes)
{
    void *memory = NULL;
    int taken = way->take(&memory, bytes);
    int given = taken ? 0 : way->give(memory);
    int waited = taken ? 0 : cudaDeviceSynchronize();
    return taken ? taken : given ? given : waited;
}

static void allocate(const struct way *way, size_t small, size_t large)
{
    void *memory = NULL;
    int first = way->take(&memory, small), beside = visit(way, large);
    int given = first ? first : way->give(memory);
    if (!given)
        given = cudaDeviceSynchronize();
    printf("%s %d %d %d %d\n", way->name, first, beside, given, visit(way, large));
}

static void tell_totals(void)
{
    static _Alignas(16) unsigned char properties[PROPERTIES_BYTES];
    size_t room = 0, total = 0;
    int result = cudaMemGetInfo(&room, &total);
    printf("cudaMemGetInfo %d %zu\n", result, total / MIB);
    result = PROPERTIES(properties, 0);
    memcpy(&total, properties + TOTAL_AT, sizeof total);
    printf("cudaGetDeviceProperties %d %zu\n", result, total / MIB);
}

static void tell_entry_point(void)
{
    Dl_info where = {0};
    void *found = NULL;
    int status, result
        = cudaGetDriverEntryPointByVersion("cuMemAlloc", &found, CUDA_OF_THE_LOOKUP, 0, &status);
    const char *slash = found && dladdr(found, &where) ? strrchr(where.dli_fname, '/') : NULL;
    printf("cudaGetDriverEntryPoint %d %s\n", result, slash ? slash + 1 : "-");
}

static void raise_heap(void)
{
    size_t heap = 0;
    int result = cudaDeviceSetLimit(LIMIT_MALLOC_HEAP_SIZE, 16 * MIB);
    if (!result)
        result = cudaDeviceGetLimit(&heap, LIMIT_MALLOC_HEAP_SIZE);
    printf("cudaDeviceSetLimit %d %d\n", result, heap >= 16 * MIB);
}

/* The first that fails, of calls of which each needs the one before. */
#define STEP(call) (result = result ? result : (call))

static void run_kernel(void)
{
    static const char code[] = ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry nothing()\n{\n"
                               "ret;\n}\n";
    const dim3 one = {1, 1, 1};
    void *library = NULL, *kernel = NULL, *stream = NULL, *from = NULL, *to = NULL, *graph = NULL, *exec = NULL;
    float ms = -1;
    int result = 0;
    STEP(cudaStreamCreate(&stream));
    STEP(cudaEventCreate(&from));
    STEP(cudaEventCreate(&to));
    STEP(cudaLibraryLoadData(&library, code, NULL, NULL, 0, NULL, NULL, 0));
    STEP(cudaLibraryGetKernel(&kernel, library, "nothing"));
    STEP(cudaEventRecord(from, stream));
    STEP(cudaLaunchKernel(kernel, one, one, NULL, 0, stream));
    STEP(cudaEventRecord(to, stream));
    STEP(cudaEventSynchronize(to));
    STEP(cudaEventElapsedTime(&ms, from, to));
    printf("cudaLaunchKernel %d %d\n", result, ms >= 0);
    STEP(cudaStreamBeginCapture(stream, CAPTURE_GLOBAL));
    STEP(cudaLaunchKernel(kernel, one, one, NULL, 0, stream));
    STEP(cudaStreamEndCapture(stream, &graph));
    STEP(cudaGraphInstantiate(&exec, graph, 0));
    STEP(cudaGraphLaunch(exec, stream));
    STEP(cudaStreamSynchronize(stream));
    STEP(cudaGraphExecDestroy(exec));
    STEP(cudaGraphDestroy(graph));
    printf("cudaGraphLaunch %d\n", result);
    STEP(cudaLibraryUnload(library));
    STEP(cudaEventDestroy(from));
    STEP(cudaEventDestroy(to));
    STEP(cudaStreamDestroy(stream));
    printf("cudaLibraryUnload %d\n", result);
}

int main(int argc, char **argv)
{
    size_t small = argc > 1 ? strtoul(argv[1], NULL, 10) * MIB : MIB;
    size_t large = argc > 2 ? strtoul(argv[2], NULL, 10) * MIB : MIB;
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++)
        allocate(&ways[i], small, large);
    tell_totals();
    tell_entry_point();
    raise_heap();
    run_kernel();
    printf("cudaDeviceReset %d\n", cudaDeviceReset());
    allocate(&ways[0], small, large);
    return 0;
}
