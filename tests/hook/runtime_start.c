/* The first calls of a program of the CUDA runtime, which it is linked to or, with OPENED, opens by that name.
 * Prints what each returns.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#ifdef OPENED
#define RUNTIME(name, ...) static int (*name)(__VA_ARGS__)
#define FIND(name) (*(void **)&(name) = dlsym(runtime, #name))
#else
#define RUNTIME(name, ...) int name(__VA_ARGS__)
#define FIND(name) name
#endif

RUNTIME(cudaGetDeviceCount, int *);
RUNTIME(cudaMemGetInfo, size_t *, size_t *);
RUNTIME(cudaMalloc, void **, size_t);
RUNTIME(cudaMallocAsync, void **, size_t, void *);

int main(void)
{
    int count = 0;
    size_t room = 0, total = 0;
    void *memory = NULL;
#ifdef OPENED
    void *runtime = dlopen(OPENED, RTLD_NOW);
    if (!runtime) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
#endif
    if (!FIND(cudaGetDeviceCount) || !FIND(cudaMemGetInfo) || !FIND(cudaMalloc) || !FIND(cudaMallocAsync))
        return 2;
    printf("%d", cudaGetDeviceCount(&count));
    printf(" %d", cudaMemGetInfo(&room, &total));
    printf(" %d", cudaMalloc(&memory, 1 << 20));
    printf(" %d", cudaMallocAsync(&memory, 1 << 20, NULL));
    return 0;
}
