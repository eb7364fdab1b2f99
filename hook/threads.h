/* Threads of ours in the program's process: detached, and without signals, which are the program's own. */
#ifndef VGPU_THREADS_H
#define VGPU_THREADS_H

#include <stdbool.h>

/* Whether it was started. */
bool thread_start(void *(*run)(void *), void *of);

#endif
