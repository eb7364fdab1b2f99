/* The hook's voice: lines on stderr for the user of the container, by LIBCUDA_LOG_LEVEL. Silent by default,
 * because this is somebody else's process.
 *
 *     0 or unset   nothing, but why CUDA is refused (log_refusal)
 *     1            errors: what keeps the hook from doing its work
 *     2 and more   warnings: what it refuses, and what it works around
 *
 * Thread and fork safe; allocates nothing, takes no lock, never blocks, is no place to be cancelled at
 * (late.c), leaves errno and the program's buffers alone. A longer line than LOG_LINE_BYTES is cut.
 */
#ifndef VGPU_LOG_H
#define VGPU_LOG_H

enum { LOG_LINE_BYTES = 512 };

void log_error(const char *format, ...) __attribute__((format(printf, 1, 2)));
void log_warning(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Why CUDA does not start, and what to do: a CUresult alone tells nobody. Whatever the level, but only once
 * in the life of a process. */
void log_refusal(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
