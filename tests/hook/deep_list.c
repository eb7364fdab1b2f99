/* Opens a library with RTLD_DEEPBIND, as deep.c does, in a program that reads the loader's record of what is loaded, as
 * who looks for a function's library by himself: deep_list LIBRARY FUNCTION. The linker gives the program a copy of it.
 * With -DOWN it has one of its own of that name, as a program has that loads others, for debuggers. */
#include <dlfcn.h>
#include <link.h>
#include <stdio.h>

#ifdef OWN
struct r_debug _r_debug;
#endif

static struct r_debug *record(void) /* as a compiler asks for it that makes no code for libraries */
{
    struct r_debug *at;
#if defined(__x86_64__)
    __asm__("lea _r_debug(%%rip), %0" : "=r"(at));
#else
    __asm__("adrp %0, _r_debug\n add %0, %0, :lo12:_r_debug" : "=r"(at));
#endif
    return at;
}

int main(int argc, char **argv)
{
    Dl_info of_record, of_main;
    int (*function)(void);
    void *library = argc == 3 ? dlopen(argv[1], RTLD_NOW | RTLD_DEEPBIND) : NULL;
    if (!dladdr(record(), &of_record) || !dladdr((void *)main, &of_main) || of_record.dli_fbase != of_main.dli_fbase)
        return 2; /* the loader's, and nothing special */
    *(void **)&function = library ? dlsym(library, argv[2]) : NULL;
    printf("%d\n", function ? function() : -1);
    return 0;
}
