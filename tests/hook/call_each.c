/* Calls functions of the driver with arguments that mean nothing, each in a process of its own:
 *
 *     call_each CONFIG STATE ARGUMENTS CODE NAME:TYPES...
 *
 * STATE: none, started (cuInit), current (and a context). ARGUMENTS: buffers or null, for TYPES p (pointer),
 * n (number) and h (handle: always 0). CODE: what the simulated driver is to answer, or 0. Prints for each
 * its CUresult, or -signal, and the memory in use before and after.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ARGUMENTS = 12, NUMBER = 64 };

#define CURRENT "cuMemAllocAsync"

typedef long (*any_function)(long, long, long, long, long, long, long, long, long, long, long, long);

static void *driver;

static long used(void)
{
    size_t room = 0, total = 0;
    ((int (*)(size_t *, size_t *))dlsym(driver, "cuMemGetInfo_v2"))(&room, &total);
    return (long)(total - room);
}

static void prepare(const char *state)
{
    void *context = NULL;
    driver = dlopen("libcuda.so.1", RTLD_LAZY);
    if (strcmp(state, "none") != 0)
        ((int (*)(unsigned))dlsym(driver, "cuInit"))(0);
    if (strcmp(state, "current") == 0) {
        ((int (*)(void **, int))dlsym(driver, "cuDevicePrimaryCtxRetain"))(&context, 0);
        ((int (*)(void *))dlsym(driver, "cuCtxSetCurrent"))(context);
    }
}

/* The node's file again, under a name of this process's own, with one more line. */
static void configure(const char *config, const char *name, const char *code)
{
    char path[4096], fresh[4096 + 8], text[65536];
    snprintf(path, sizeof path, "%s.%s", config, name);
    snprintf(fresh, sizeof fresh, "%s.new", path);
    FILE *from = fopen(config, "r"), *to = fopen(fresh, "w");
    size_t length = fread(text, 1, sizeof text, from);
    fwrite(text, 1, length, to);
    if (strcmp(code, "0") != 0)
        fprintf(to, "fail call=%s code=%s\n", name, code);
    if (strcmp(code, "0") != 0 && strncmp(name, CURRENT, sizeof CURRENT - 1) == 0) /* passed on as this */
        fprintf(to, "fail call=cuMemAllocFromPoolAsync%s code=%s\n", name + sizeof CURRENT - 1, code);
    fclose(from);
    fclose(to);
    rename(fresh, path);
    setenv("VGPU_SIM_DRIVER", path, 1);
}

static long call(const char *name, const char *types, int null)
{
    static char buffers[ARGUMENTS][4096];
    long arguments[ARGUMENTS] = {0};
    for (int i = 0; types[i] && i < ARGUMENTS; i++)
        arguments[i] = types[i] == 'n' ? NUMBER : types[i] == 'p' && !null ? (long)buffers[i] : 0;
    any_function function = (any_function)dlsym(driver, name);
    long *a = arguments;
    return function ? (int)function(a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8], a[9], a[10], a[11])
                    : -1000;
}

int main(int argc, char **argv)
{
    const char *config = argv[1], *state = argv[2], *code = argv[4];
    for (int i = 5; i < argc; i++) {
        char *name = argv[i], *types = strchr(name, ':');
        *types++ = '\0';
        fflush(stdout);
        pid_t child = fork();
        if (child == 0) {
            configure(config, name, "0");
            prepare(state);
            long before = strcmp(state, "current") == 0 ? used() : 0;
            configure(config, name, code);
            long result = call(name, types, strcmp(argv[3], "null") == 0);
            configure(config, name, "0");
            printf("%s %ld %ld %ld\n", name, result, before, before ? used() : 0);
            fflush(stdout);
            _exit(0);
        }
        int status;
        waitpid(child, &status, 0);
        if (WIFSIGNALED(status))
            printf("%s %d 0 0\n", name, -WTERMSIG(status));
    }
    return 0;
}
