#include "process.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { EXITING_FLAG = 4 }; /* PF_EXITING of Linux */

struct process {
    char state;
    unsigned flags;
    long threads;
    unsigned long long start_time;
};

/* Of this one only if /proc is of our pid namespace: one that was mounted outside, and stayed, has another by
 * our number. */
static bool read_process(int32_t pid, struct process *process)
{
    char path[64], text[1024];
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    int fd = open(pid == getpid() ? "/proc/self/stat" : path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    ssize_t length = read(fd, text, sizeof text - 1);
    close(fd);
    if (length <= 0)
        return false;
    text[length] = '\0';
    const char *field = strrchr(text, ')'); /* the command may contain anything, blanks and brackets too */
    return field
        && sscanf(field + 1, " %c%*d%*d%*d%*d%*d%u%*u%*u%*u%*u%*u%*u%*d%*d%*d%*d%ld%*d%llu", &process->state,
                  &process->flags, &process->threads, &process->start_time)
        == 4
        && atoi(text) == pid;
}

/* Waits to be reaped. Its first thread may wait for that while others live. */
static bool ended(const struct process *process)
{
    return (process->state == 'Z' || process->state == 'X') && process->threads <= 1;
}

static bool no_such(int32_t pid)
{
    return pid <= 0 || (kill(pid, 0) != 0 && errno == ESRCH);
}

char process_state(int32_t pid)
{
    struct process process;
    return read_process(pid, &process) ? process.state : 0;
}

uint64_t process_start_time(int32_t pid)
{
    struct process process;
    return read_process(pid, &process) && !ended(&process) ? process.start_time : 0;
}

/* One whose entry in /proc cannot be read, as where no descriptor is left or it may not be seen, lives on. */
bool process_gone(int32_t pid, uint64_t start_time)
{
    struct process process;
    if (no_such(pid))
        return true;
    return read_process(pid, &process)
        && (ended(&process) || (start_time && process.start_time != start_time))
        && process_start_time((int32_t)getpid()) != 0; /* or /proc is not ours */
}

bool process_is_exiting(int32_t pid, uint64_t start_time)
{
    struct process process;
    if (!read_process(pid, &process))
        return !no_such(pid);
    return !ended(&process) && process.start_time == start_time && (process.flags & EXITING_FLAG);
}
