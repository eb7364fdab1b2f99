#include "process.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

uint64_t process_start_time(int32_t pid)
{
    char path[64], text[1024];
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return 0;
    ssize_t length = read(fd, text, sizeof text - 1);
    close(fd);
    if (length <= 0)
        return 0;
    text[length] = '\0';
    const char *field = strrchr(text, ')'); /* the command may contain anything, blanks and brackets too */
    if (!field || strlen(field) < 3 || strchr("ZX", field[2]))
        return 0;
    unsigned long long start_time = 0;
    if (sscanf(field + 2, "%*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %llu",
               &start_time)
        != 1)
        return 0;
    return start_time;
}

bool process_gone(int32_t pid, uint64_t start_time)
{
    if (pid <= 0 || (kill(pid, 0) != 0 && errno == ESRCH))
        return true;
    uint64_t found = process_start_time(pid);
    if (found)
        return start_time && found != start_time;
    /* It exists, so it is a zombie, unless /proc hides it or is not there at all. */
    return kill(pid, 0) == 0 && process_start_time((int32_t)getpid()) != 0;
}
