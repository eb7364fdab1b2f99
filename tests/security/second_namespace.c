/*
 * A tenant that reaches the driver through a library in a namespace of its own, of dlmopen: nothing
 * that /etc/ld.so.preload loads stands before it there. It answers as sim-tenant does.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>

static void answer(const char *command, int result)
{
    printf("{\"command\":\"%s\",\"ok\":%s,\"result\":%d,\"held_mib\":0,\"refused\":0,\"devices\":[],"
           "\"error\":\"\"}\n", command, result ? "false" : "true", result);
    fflush(stdout);
}

int main(int count, char **words)
{
    void *library = count == 2 ? dlmopen(LM_ID_NEWLM, words[1], RTLD_NOW) : NULL;
    if (!library) {
        fprintf(stderr, "no second namespace: %s\n", dlerror());
        return 1;
    }
    int (*allocate)(unsigned long) = (int (*)(unsigned long))dlsym(library, "allocate_mib");
    char line[64];
    unsigned long mib;
    answer("ready", allocate(0));
    while (fgets(line, sizeof line, stdin))
        if (sscanf(line, "alloc %lu", &mib) == 1)
            answer("alloc", allocate(mib));
    return 0;
}
