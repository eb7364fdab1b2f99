/* The usage region as a file: finding, making, checking and mapping it, and locking it for a moment. Every
 * wait is bounded.
 */
#ifndef VGPU_REGION_FILE_H
#define VGPU_REGION_FILE_H

#include "region_content.h"

#include <stdbool.h>
#include <stdint.h>

enum { FILE_BYTES = TAIL_OFFSET + TAIL_BYTES };

/* Map the file, in order, making it if need be. NULL, with `problem` saying why, when it cannot be had. What
 * the agent has made (limits.h) is never made or mended here: a container that could have it anew would have
 * its budget anew. Nor is anything by a setuid program. */
struct region *region_file_open(const char **problem);

/* Whether a descriptor is of the mapped file. */
bool region_file_is(int fd);

/* The mapped file as a file of its own; -1 with errno set when it is not at its path any more. */
int region_file_reopen(void);

/* The same with the number that `noted` says already, so that a fork finds it at every moment. Another thread
 * that opens a file just then may get that number, but hardly each time. */
int region_file_reopen_noted(_Atomic int *noted);

/* The same with its lock held, waiting at most that long. The kernel takes the lock back from whoever dies;
 * waiting for one that is stopped ends. */
int region_file_lock(int patience_ms);

/* Unlock and close; errno stays. */
void region_file_unlock(int fd);

/* Nanoseconds of CLOCK_MONOTONIC. The coarse one is some milliseconds behind, and cheaper. */
uint64_t now_ns(void);
uint64_t coarse_now_ns(void);

#endif
