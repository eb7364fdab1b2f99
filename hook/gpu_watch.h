/* A thread of ours that reads measurements while launches are limited and measured (gpu_time.h), and sees who
 * has the GPU meanwhile. It is there as long as there is something to read, and then looks once a second
 * until monitors are shown that the process is idle (busy.h). It ends before the process does. Where it
 * cannot be had, whoever measures a launch reads what was measured by then.
 */
#ifndef VGPU_GPU_WATCH_H
#define VGPU_GPU_WATCH_H

#include <stdint.h>

/* Something is being measured at this time. Cheap while the thread is there. */
void gpu_watch(uint64_t now_ns);

#endif
