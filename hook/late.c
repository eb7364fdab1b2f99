/* Functions of libc, under their own names, found when the first of them is called.
 *
 * What a library asks of others is looked up at every exec of the container, for programs that never come to
 * us: some 0.2 us for each function, and 20 us for each further library, which libpthread and libdl were
 * until glibc 2.34. Another libc may lack one of them, and then ends the program. So each call below jumps
 * through a place of its own that is filled at the first call, as lazy binding would do it, and when it is
 * loaded the library asks for no more than what it finds the rest with. A function that is missing in this
 * list is bound by the loader as usual, and tests/hook/test_staying_out.py says so.
 */
#include "late.h"
#include "loaded.h"
#include "real.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

// clang-format off
#define LATE(X) \
    X(__cxa_atexit) X(__errno_location) X(__fxstat) X(__xstat) X(__isoc99_sscanf) X(__register_atfork) \
    X(atoi) X(calloc) \
    X(clock_gettime) X(clock_nanosleep) X(dladdr) X(dlclose) X(dlerror) X(fchmod) \
    X(fcntl) X(flock) X(free) X(ftruncate) X(getauxval) X(getenv) X(geteuid) X(getpid) X(getrlimit) \
    X(kill) X(madvise) \
    X(malloc) X(memchr) X(memcmp) X(memcpy) X(memset) \
    X(posix_fallocate) X(pthread_attr_destroy) \
    X(pthread_attr_init) X(pthread_attr_setdetachstate) \
    X(pthread_attr_setstacksize) X(pthread_create) X(pthread_key_create) X(pthread_mutex_init) \
    X(pthread_mutex_lock) X(pthread_mutex_unlock) X(pthread_self) \
    X(pthread_setcancelstate) X(pthread_setspecific) \
    X(sched_yield) X(sigfillset) X(sigprocmask) X(snprintf) X(sprintf) X(strcasecmp) X(strcmp) \
    X(strcpy) X(strcspn) X(strerror) X(strlen) X(strncasecmp) X(strncmp) X(strnlen) X(strrchr) \
    X(strspn) X(syscall) X(time) \
    X(vsnprintf)
// clang-format on

enum {
#define X(name) AT_##name,
    LATE(X) FUNCTIONS
#undef X
};

_Static_assert(AT_dlerror == AT_dlclose + 1, "one behind the other");

static const struct {
#define X(name) char of_##name[sizeof #name];
    LATE(X)
#undef X
} names = {
#define X(name) #name,
    LATE(X)
#undef X
};

static const unsigned short name_at[] = {
#define X(name) offsetof(__typeof__(names), of_##name),
    LATE(X)
#undef X
};

/* What an exec writes is copied page by page. So what the loader relocates lies within one page, which a
 * first word with an alignment sees to, and our variables begin at one, or the loader would clear the rest of
 * it. */
enum { RELOCATED_BYTES = 512, PAGE_BYTES = 4096 };

__attribute__((visibility("hidden"), aligned(PAGE_BYTES))) _Atomic(void *) late_functions[FUNCTIONS];
__attribute__((section(".data.rel.ro"), aligned(RELOCATED_BYTES), used, retain)) static void *const first =
    (void *)late_functions;

void *late_find(unsigned function);

static long missing(void)
{
    return -1;
}

static void *libcs(const char *name)
{
    dlsym_function *lookup = real_dlsym();
    void *found = lookup ? lookup(RTLD_DEFAULT, name) : NULL; /* as the loader would have bound it */
    return found ? found : loaded_libc(name);
}

__attribute__((used)) void *late_find(unsigned function)
{
    const char *name = (const char *)&names + name_at[function];
    /* Who takes dlopen over may have a dlclose that knows his handles only: ours are libc's (dlopen.c). */
    void *found = function >= AT_dlclose && function <= AT_dlerror ? loaded_libc(name) : NULL;
    if (!found)
        found = libcs(name);
    if (!found)
        found = (void *)&missing;
    atomic_store_explicit(&late_functions[function], found, memory_order_relaxed);
    return found;
}

void late_find_all(void)
{
    for (unsigned i = 0; i < FUNCTIONS; i++)
        if (!atomic_load_explicit(&late_functions[i], memory_order_relaxed))
            late_find(i);
}

/* --- jumps ---------------------------------------------------------------------------------------------- */

/* late_enter keeps all that may be an argument, has the function found, and goes on to it. */
#if defined(__x86_64__)
__asm__(".macro late name\n"
        ".globl \\name\n.hidden \\name\n.type \\name, @function\n"
        "\\name:\n"
        "movq late_functions + 8 * late_index(%rip), %r11\n"
        "testq %r11, %r11\n"
        "je 1f\n"
        "jmpq *%r11\n"
        "1: movl $late_index, %r11d\n"
        "jmp late_enter\n"
        ".set late_index, late_index + 1\n"
        ".endm\n"
        ".pushsection .text\n"
        "late_enter:\n"
        "pushq %rdi\npushq %rsi\npushq %rdx\npushq %rcx\npushq %r8\npushq %r9\npushq %rax\n"
        "subq $128, %rsp\n"
        "movups %xmm0, (%rsp)\nmovups %xmm1, 16(%rsp)\nmovups %xmm2, 32(%rsp)\nmovups %xmm3, 48(%rsp)\n"
        "movups %xmm4, 64(%rsp)\nmovups %xmm5, 80(%rsp)\nmovups %xmm6, 96(%rsp)\nmovups %xmm7, 112(%rsp)\n"
        "movl %r11d, %edi\n"
        "callq late_find\n"
        "movq %rax, %r11\n"
        "movups (%rsp), %xmm0\nmovups 16(%rsp), %xmm1\nmovups 32(%rsp), %xmm2\nmovups 48(%rsp), %xmm3\n"
        "movups 64(%rsp), %xmm4\nmovups 80(%rsp), %xmm5\nmovups 96(%rsp), %xmm6\nmovups 112(%rsp), %xmm7\n"
        "addq $128, %rsp\n"
        "popq %rax\npopq %r9\npopq %r8\npopq %rcx\npopq %rdx\npopq %rsi\npopq %rdi\n"
        "jmpq *%r11\n");
#elif defined(__aarch64__)
__asm__(".macro late name\n"
        ".globl \\name\n.hidden \\name\n.type \\name, %function\n"
        "\\name:\n"
        "mov w17, #late_index\n"
        "adrp x16, late_functions + 8 * late_index\n"
        "ldr x16, [x16, :lo12:late_functions + 8 * late_index]\n"
        "cbz x16, late_enter\n"
        "br x16\n"
        ".set late_index, late_index + 1\n"
        ".endm\n"
        ".pushsection .text\n"
        ".balign 4\n"
        "late_enter:\n"
        "stp x29, x30, [sp, #-224]!\n"
        "mov x29, sp\n"
        "stp x0, x1, [sp, #16]\nstp x2, x3, [sp, #32]\nstp x4, x5, [sp, #48]\nstp x6, x7, [sp, #64]\n"
        "str x8, [sp, #80]\n"
        "stp q0, q1, [sp, #96]\nstp q2, q3, [sp, #128]\nstp q4, q5, [sp, #160]\nstp q6, q7, [sp, #192]\n"
        "mov w0, w17\n"
        "bl late_find\n"
        "mov x16, x0\n"
        "ldp x0, x1, [sp, #16]\nldp x2, x3, [sp, #32]\nldp x4, x5, [sp, #48]\nldp x6, x7, [sp, #64]\n"
        "ldr x8, [sp, #80]\n"
        "ldp q0, q1, [sp, #96]\nldp q2, q3, [sp, #128]\nldp q4, q5, [sp, #160]\nldp q6, q7, [sp, #192]\n"
        "ldp x29, x30, [sp], #224\n"
        "br x16\n");
#endif
#define X(name) "late " #name "\n"
__asm__(".set late_index, 0\n" LATE(X) ".popsection\n");
#undef X

/* --- what a process without threads, or an older libc, does not have -------------------------------------
 */

enum { GLIBC_ONCE_DONE = 2 };

extern void *__dso_handle;
int __register_atfork(void (*prepare)(void), void (*parent)(void), void (*child)(void), void *library);

int pthread_once(pthread_once_t *once, void (*routine)(void))
{
    static _Atomic(void *) known;
    __typeof__(&pthread_once) real;
    void *found = atomic_load_explicit(&known, memory_order_relaxed);
    if (!found)
        found = libcs("pthread_once");
    atomic_store_explicit(&known, found, memory_order_relaxed);
    *(void **)&real = found;
    if (real)
        return real(once, routine);
    if (*once == PTHREAD_ONCE_INIT) {
        routine();
        *once = GLIBC_ONCE_DONE;
    }
    return 0;
}

int pthread_atfork(void (*prepare)(void), void (*parent)(void), void (*child)(void))
{
    __typeof__(&pthread_atfork) real;
    /* What glibc's calls, which is linked into each library. Never looked up by this call: it may come while
     * the loader's lock is held for who waits for us. */
    int result = __register_atfork(prepare, parent, child, &__dso_handle);
    if (result >= 0)
        return result;
    *(void **)&real = libcs("pthread_atfork");
    return real ? real(prepare, parent, child) : ENOMEM;
}

int pthread_sigmask(int how, const sigset_t *set, sigset_t *before)
{
    return sigprocmask(how, set, before) == 0 ? 0 : errno; /* Linux knows no difference */
}

/* --- where no thread is cancelled ------------------------------------------------------------------------
 *
 * Few of the driver's calls are places for it, and who is cancelled in one of these would keep a lock or a
 * descriptor for ever. libc's own are such places, its syscall is none. Who waits for GPU time holds nothing;
 * who sleeps otherwise (monotonic.c) may.
 */

int open_with(const char *path, int flags, unsigned permissions) __asm__("open");

int open_with(const char *path, int flags, unsigned permissions)
{
    return (int)syscall(SYS_openat, AT_FDCWD, path, flags, permissions);
}

/* Nor does who takes these two over come to us while a lock of ours is held. */
void *mmap(void *at, size_t bytes, int protection, int flags, int fd, off_t offset)
{
    return (void *)syscall(SYS_mmap, at, bytes, protection, flags, fd, offset);
}

int munmap(void *at, size_t bytes)
{
    return (int)syscall(SYS_munmap, at, bytes);
}

int close(int fd)
{
    return (int)syscall(SYS_close, fd);
}

ssize_t read(int fd, void *into, size_t bytes)
{
    return syscall(SYS_read, fd, into, bytes);
}

ssize_t write(int fd, const void *from, size_t bytes)
{
    return syscall(SYS_write, fd, from, bytes);
}

int nanosleep(const struct timespec *wait, struct timespec *left)
{
    return (int)syscall(SYS_nanosleep, wait, left);
}
