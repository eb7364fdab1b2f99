/* The hook's voice: one line on stderr for what an operator must know, only when LIBCUDA_LOG_LEVEL is 1 or
 * more. Silent by default, because this is somebody else's process. Thread safe; no buffers of the host are
 * touched.
 */
#ifndef VGPU_LOG_H
#define VGPU_LOG_H

void log_error(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
