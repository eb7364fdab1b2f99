/* In place of process.c: what is known of other processes is what a test says. */
#include "process.h"

extern bool said_gone, said_exiting;
bool said_gone, said_exiting;

uint64_t process_start_time(int32_t pid)
{
    return pid > 0 ? 1234 : 0;
}

bool process_gone(int32_t pid, uint64_t start_time)
{
    (void)pid;
    return said_gone && start_time == 1234;
}

bool process_is_exiting(int32_t pid, uint64_t start_time)
{
    (void)pid;
    return said_exiting && start_time == 1234;
}
