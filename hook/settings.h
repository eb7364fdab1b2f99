/* What the environment asks of this process, read once at the first use of the driver. Immutable afterwards.
 *
 * CUDA_DEVICE_MEMORY_LIMIT_<i>     limit of the i-th device of the container, 0 <= i < 16
 * CUDA_DEVICE_MEMORY_LIMIT         limit of every device that has none of its own
 *     A number, with k, m, g or t (also Ki, KiB, KB ..., in any case) for powers of 1024; bytes without.
 *     Unset, empty and 0 mean: no limit. Anything else is malformed, and malformed never means unlimited:
 *     CUDA does not start.
 * CUDA_DEVICE_MEMORY_SHARED_CACHE  file that the container's processes count in
 *                                  (default /tmp/cudevshr.cache)
 * CUDA_DEVICE_SM_LIMIT, CUDA_TASK_PRIORITY   only recorded in that file, for its readers
 * NVIDIA_VISIBLE_DEVICES           if a list of GPU uuids: which device is the i-th. Otherwise the devices'
 *                                  numbers say nothing (CUDA and the scheduler count differently), and each
 *                                  device gets the smallest of the limits.
 * LIBCUDA_LOG_LEVEL                see log.h
 */
#ifndef VGPU_SETTINGS_H
#define VGPU_SETTINGS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { MAX_DEVICES = 16, UUID_BYTES = 96 };

struct settings {
    bool active; /* something is to be limited or counted; otherwise the hook steps aside */
    bool malformed; /* then `problem` says what */
    char problem[256];
    char cache_path[4096];
    int log_level, priority;
    uint64_t sm_percent;
    size_t uuid_count; /* 0: devices are not known by uuid */
    char uuids[MAX_DEVICES][UUID_BYTES];
    uint64_t limit_bytes[MAX_DEVICES]; /* by position in uuids; 0: none */
    uint64_t smallest_limit_bytes; /* for devices that are not in uuids */
};

const struct settings *settings(void);

/* The limit of a device, by uuid; 0: none. */
uint64_t settings_limit_bytes(const char *uuid);

/* Parse a limit. False when malformed. Pure. */
bool parse_bytes(const char *text, uint64_t *bytes);

#endif
