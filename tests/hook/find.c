/* Looks names up in one way: find ROUTE NAME...; prints for each which library
 * it was found in, and as what.
 *
 * As a program it stands first in the search order; as a library (find_next)
 * wherever it is loaded.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

void *find_next(const char *name);

__attribute__((visibility("default"), noinline)) void *find_next(const char *name)
{
    void *volatile found = dlsym(RTLD_NEXT, name); /* no tail call: the caller is this library */
    return found;
}

#ifndef LIBRARY
static const char *file_of(void *address)
{
    Dl_info info;
    if (!address)
        return "nothing";
    if (!dladdr(address, &info) || !info.dli_fname)
        return "nowhere";
    const char *slash = strrchr(info.dli_fname, '/');
    return slash ? slash + 1 : info.dli_fname;
}

static void *find(const char *route, const char *name, void *cuda, void *nvml, void *behind)
{
    void *handle = name[0] == 'n' ? nvml : cuda;
    if (strcmp(route, "default") == 0)
        return dlsym(RTLD_DEFAULT, name);
    if (strcmp(route, "next") == 0)
        return find_next(name);
    if (strcmp(route, "behind") == 0)
        return ((void *(*)(const char *))dlsym(behind, "find_next"))(name);
    if (strcmp(route, "program") == 0)
        return dlsym(dlopen(NULL, RTLD_LAZY), name);
    if (strcmp(route, "version") == 0)
        return dlvsym(handle, name, "CUDA_12");
    return dlsym(handle, name);
}

int main(int argc, char **argv)
{
    int mode = RTLD_LAZY | RTLD_GLOBAL;
    void *behind = dlopen("libbehind.so", RTLD_LAZY); /* needs both drivers, and so stands before them */
    void *cuda = dlopen("libcuda.so.1", mode), *nvml = dlopen("libnvidia-ml.so.1", mode);
    for (int i = 2; i < argc; i++) {
        dlsym(cuda, "what nobody has"); /* dlerror has something to say, which a later success takes back */
        void *found = find(argv[1], argv[i], cuda, nvml, behind);
        const char *error = dlerror();
        printf("%s %s %s\n", argv[i], file_of(found), error ? "error" : "-");
    }
    return 0;
}
#endif
