#include "log.h"
#include "settings.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>

void log_error(const char *format, ...)
{
    if (settings()->log_level < 1)
        return;
    int error = errno;
    char line[512];
    int length = snprintf(line, sizeof line, "[vgpu] error %d ", (int)getpid());
    va_list arguments;
    va_start(arguments, format);
    int more = vsnprintf(line + length, sizeof line - (size_t)length - 1, format, arguments);
    va_end(arguments);
    length += more < (int)sizeof line - length - 1 ? more : (int)sizeof line - length - 2;
    line[length++] = '\n';
    if (write(STDERR_FILENO, line, (size_t)length) < 0) { /* there is nobody left to tell */
    }
    errno = error;
}
