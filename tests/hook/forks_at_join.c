/*
 * A process that forks at every system call with which it joins the usage region, of children that stay.
 *
 * forks_at_join HOW: linked to the accounting. HOW is who forks:
 *
 *   fork    another thread, before and after each system call of the thread that joins
 *   files   the same, and that thread opens a file at many of these moments, and keeps it
 *   signal  a signal handler of the thread that joins, at each of its system calls
 *   clone   another thread, by the system call itself, which no handler of fork sees
 *
 * Then it takes 60 MiB, and executes itself. Said on stdout: at how many moments it forked; how many locks of
 * slots are left after the exec; how many MiB are taken once the new program has joined; how many children
 * have lost a file that is not ours. The children are ended at the end. Exit code 77: no tracing here.
 */
#include "../../hook/region.h"
#include "../../hook/real.h"
#include "../../hook/region_file.h"
#include "../../hook/settings.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SHARED_FD = 200 }; /* the same before and after the exec */
enum { MOST = 2000, MOST_FILES = 300, OPEN_UNTIL = 20, OPEN_EVERY = 5, TAKEN_MIB = 60, MOST_STAY_S = 300, AT_CALL = SIGTRAP | 0x80 };

static struct {
    int moments, lost_files, left_locks;
    _Atomic int joined;
    pid_t children[MOST];
} *shared; /* by all of them */
static const char *how;
static int asking[2], answering[2]; /* pipes to and from the thread that forks */
static int begun[2]; /* a pipe from its children */
static int files[MOST_FILES], file_count;

_Atomic(const void *) real_known[DRIVERS]; /* no driver */
atomic_bool real_cuda_settled;

const void *real_search(enum driver which, bool load)
{
    (void)which;
    (void)load;
    return NULL;
}

static bool is(const char *name)
{
    return strcmp(how, name) == 0;
}

static void stay(void)
{
    for (int i = 0; i < file_count; i++)
        shared->lost_files += fcntl(files[i], F_GETFD) < 0;
    char word = 0;
    alarm(MOST_STAY_S); /* in case nobody ends it */
    if (write(begun[1], &word, 1) != 1)
        _exit(1);
    for (;;)
        pause();
}

/* Returns when the child has run its handlers. */
static void make_child(void)
{
    int now = shared->moments;
    if (is("files") && (now < OPEN_UNTIL || now % OPEN_EVERY == 0) && file_count < MOST_FILES)
        files[file_count++] = open("/dev/null", O_RDONLY | O_CLOEXEC);
    pid_t child = is("clone") ? (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0) : fork();
    if (child == 0)
        stay();
    char word;
    if (child < 0 || read(begun[0], &word, 1) != 1)
        _exit(1);
    shared->children[shared->moments++] = child;
}

static void *fork_as_asked(void *nothing)
{
    char word;
    while (read(asking[0], &word, 1) == 1) {
        make_child();
        if (write(answering[1], &word, 1) != 1)
            _exit(1);
    }
    return nothing;
}

static void fork_at_signal(int signal)
{
    (void)signal;
    make_child();
    raise(SIGTRAP);
}

static int execed(void)
{
    if (!region_join())
        return 3;
    printf("%d %d %llu %d\n", shared->moments, shared->left_locks,
           (unsigned long long)region_used_bytes(region_device("GPU-forks")) >> 20, shared->lost_files);
    return 0;
}

static int joins(void)
{
    pthread_t forking;
    if (!settings()->active || !region_open())
        return 3;
    signal(SIGUSR1, fork_at_signal);
    if (!is("signal"))
        pthread_create(&forking, NULL, fork_as_asked, NULL);
    int place = region_device("GPU-forks");
    raise(SIGTRAP); /* from here on */
    shared->joined = region_join() ? 1 : -1;
    if (shared->joined < 0 || !region_reserve(place, CHARGE_DATA, (uint64_t)TAKEN_MIB << 20, 0))
        return 3;
    return execl("/proc/self/exe", "execed", how, (char *)NULL);
}

/* --- who looks on --------------------------------------------------------------------------------------- */

static int until_stop(pid_t pid, int request, int signal)
{
    int status = 0;
    if (ptrace(request, pid, NULL, (void *)(long)signal) != 0 || waitpid(pid, &status, 0) != pid)
        return 0;
    return WIFSTOPPED(status) ? WSTOPSIG(status) : 0;
}

static bool fork_now(pid_t pid)
{
    char word = 0;
    if (!is("signal"))
        return write(asking[1], &word, 1) == 1 && read(answering[0], &word, 1) == 1;
    kill(pid, SIGUSR1);
    return until_stop(pid, PTRACE_CONT, 0) == SIGUSR1 && until_stop(pid, PTRACE_CONT, SIGUSR1) == SIGTRAP
        && until_stop(pid, PTRACE_SYSCALL, 0) == AT_CALL /* the handler's own return, in and out */
        && until_stop(pid, PTRACE_SYSCALL, 0) == AT_CALL;
}

static int left_locks(void)
{
    int fd = open(getenv("CUDA_DEVICE_MEMORY_SHARED_CACHE"), O_RDWR | O_CLOEXEC), found = 0;
    for (int i = 0; i < REGION_SLOTS; i++) {
        struct flock lock = {
            .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = FILE_BYTES + i, .l_len = 1};
        found += fcntl(fd, F_OFD_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
    }
    close(fd);
    return found;
}

static int look_on(pid_t pid)
{
    int status = 0, stopped;
    if (waitpid(pid, &status, 0) != pid || !WIFSTOPPED(status)
        || ptrace(PTRACE_SETOPTIONS, pid, NULL, (void *)(PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL)) != 0
        || until_stop(pid, PTRACE_CONT, 0) != SIGTRAP)
        return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
    for (int entry = 1; (stopped = until_stop(pid, PTRACE_SYSCALL, 0)) == AT_CALL && !shared->joined; entry = !entry)
        if (shared->moments < MOST && !(entry && is("signal")) && !fork_now(pid))
            return 1;
    if (stopped != AT_CALL || until_stop(pid, PTRACE_CONT, 0) != SIGTRAP) /* once it has executed itself */
        return 1;
    shared->left_locks = left_locks();
    ptrace(PTRACE_CONT, pid, NULL, NULL);
    return waitpid(pid, &status, 0) == pid && WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

int main(int count, char **words)
{
    how = count == 2 ? words[1] : "";
    bool again = strcmp(words[0], "execed") == 0;
    if (!again && (dup2(memfd_create("shared", 0), SHARED_FD) < 0 || ftruncate(SHARED_FD, sizeof *shared) != 0))
        return 1;
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED, SHARED_FD, 0);
    if (shared == MAP_FAILED)
        return 1;
    if (again)
        return execed();
    if (pipe(asking) != 0 || pipe(answering) != 0 || pipe(begun) != 0)
        return 1;
    pid_t pid = fork();
    if (pid == 0) {
        if (ptrace(PTRACE_TRACEME, 0, NULL, NULL) != 0)
            _exit(77);
        raise(SIGTRAP);
        _exit(joins());
    }
    int result = pid > 0 ? look_on(pid) : 1;
    for (int i = 0; i < shared->moments; i++)
        kill(shared->children[i], SIGKILL);
    return result;
}
