/* Opens a library with RTLD_DEEPBIND, calls a function of it, and says what it gave: deep [lazy|now] LIBRARY FUNCTION. */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

int main(int argc, char **argv)
{
    int (*function)(void);
    int when = argc == 4 && strcmp(argv[1], "lazy") == 0 ? RTLD_LAZY : RTLD_NOW;
    void *library = argc == 4 ? dlopen(argv[2], when | RTLD_DEEPBIND) : NULL;
    if (!library || !(*(void **)&function = dlsym(library, argv[3]))) {
        puts(dlerror());
        return 1;
    }
    printf("%d\n", function());
    return 0;
}
