/* The shared region as a file: locking it for a moment, making and mapping it. No state; every wait is
 * bounded.
 */
#ifndef VGPU_REGION_FILE_H
#define VGPU_REGION_FILE_H

#include "region_layout.h"

#include <stdbool.h>
#include <stdint.h>

/* Open the file (making it if need be) with its lock held, waiting at most that long; -1 with errno set. The
 * kernel takes the lock back from whoever dies; waiting for one that is stopped ends. */
int region_file_lock(int patience_ms);

/* Unlock and close; errno stays. */
void region_file_unlock(int fd);

/* The file, mapped and in order, or NULL with errno set. Its lock must be held. */
struct region *region_file_map(int fd);

/* Give these bytes real blocks: writing into a hole of a full disk would end the process with SIGBUS. */
bool region_file_back(int fd, size_t offset, size_t bytes);

/* Our part of a mapped region. */
struct region_tail *region_tail(struct region *region);

/* Milliseconds of a clock that only goes forward. */
int64_t now_ms(void);

#endif
