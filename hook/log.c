#include "log.h"
#include "settings.h"

#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* A pipe whose reader is gone would end the process by a signal, as would a file that is as large as this
 * process may make one; a full pipe would hold it up. In libc's poll a thread may be cancelled (late.c). */
static bool takes_more(void)
{
    struct pollfd out = {.fd = STDERR_FILENO, .events = POLLOUT};
    struct timespec at_once = {0, 0};
    struct stat status;
    struct rlimit most;
    if (syscall(SYS_ppoll, &out, 1, &at_once, NULL, 0) != 1 || out.revents != POLLOUT)
        return false;
    if (fstat(STDERR_FILENO, &status) != 0 || !S_ISREG(status.st_mode) || getrlimit(RLIMIT_FSIZE, &most) != 0)
        return true;
    long at = syscall(SYS_lseek, STDERR_FILENO, 0, SEEK_CUR); /* it may have been cut short since */
    return (rlim_t)(at > status.st_size ? at : status.st_size) < most.rlim_cur;
}

void log_line(enum log_level level, const char *format, ...)
{
    static _Atomic pid_t told;
    if (level == LOG_REFUSAL ? atomic_exchange(&told, getpid()) == getpid()
                             : (int)level > settings()->log_level)
        return;
    int error = errno;
    char line[LOG_LINE_BYTES];
    int length = snprintf(line, sizeof line, "[vgpu] %s %d %s", level == LOG_WARNING ? "warning" : "error",
                          (int)getpid(), level == LOG_REFUSAL ? "CUDA does not start: " : "");
    int room = (int)sizeof line - length - 1; /* the end of the line stands where the text ends with NUL */
    va_list arguments;
    va_start(arguments, format);
    int more = vsnprintf(line + length, (size_t)room, format, arguments);
    va_end(arguments);
    length += more < 0 ? 0 : more < room ? more : room - 1;
    for (char *c = line; c < line + length; c++) /* of the environment's: no second line, no escapes */
        if ((unsigned char)*c < ' ' || *c == 0x7f)
            *c = '?';
    line[length++] = '\n';
    if (takes_more() && write(STDERR_FILENO, line, (size_t)length) < 0) { /* nobody left to tell */
    }
    errno = error;
}
