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

/* A refusal is why CUDA does not start, and what to do: a CUresult alone tells nobody. Whatever is asked for,
 * but only once in the life of a process. */
enum log_level { LOG_REFUSAL, LOG_ERROR, LOG_WARNING };

void log_line(enum log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

#define log_refusal(...) log_line(LOG_REFUSAL, __VA_ARGS__)
#define log_error(...) log_line(LOG_ERROR, __VA_ARGS__)
#define log_warning(...) log_line(LOG_WARNING, __VA_ARGS__)

#endif
