/* Functions of libc, found at our first use of a driver instead of when we are loaded. */
#ifndef VGPU_LATE_H
#define VGPU_LATE_H

/* Find them all now: later, in the child of a fork, the loader's lock may have no owner. */
void late_find_all(void);

#endif
