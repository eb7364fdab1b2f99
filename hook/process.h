/* When a process started, which tells it apart from a later one with the same pid; whether it has ended.
 * Reads /proc only. */
#ifndef VGPU_PROCESS_H
#define VGPU_PROCESS_H

#include <stdbool.h>
#include <stdint.h>

/* Clock ticks since boot; 0 when the process is gone, waits to be reaped, or cannot be seen, as this one
 * where /proc is of another pid namespace. A process whose first thread ended lives on in the others. */
uint64_t process_start_time(int32_t pid);

/* Whether the process that had this pid and start time (0: not known) has ended. In doubt, no. */
bool process_gone(int32_t pid, uint64_t start_time);

/* What a process or a thread does, as in /proc/<pid>/stat; 0: not known. */
char process_state(int32_t pid);

/* Whether it is about to end: it may still have files open, and so memory of a GPU. In doubt, yes, for as
 * long as there is one of this pid. */
bool process_is_exiting(int32_t pid, uint64_t start_time);

#endif
