/* What the environment asks of this process, read once at the first use of the driver. Immutable afterwards.
 * Where the agent's limits file lies beside this library (limits.h), the environment can only lower what that
 * allows.
 *
 * CUDA_DEVICE_MEMORY_LIMIT_<i>     limit of the i-th device of the container, 0 <= i < 16
 * CUDA_DEVICE_MEMORY_LIMIT         limit of every device that has none of its own
 *     A number, with k, m, g or t (also Ki, KiB, KB ..., in any case) for powers of 1024; bytes without. With
 *     a unit it may have a fraction (4.5g). Blanks and a plus before it are skipped; 0x starts a hexadecimal
 *     number, a leading 0 is only a digit (010m is 10 MiB). Unset, empty and 0 mean: no limit.
 * CUDA_DEVICE_SM_LIMIT_<i>         share of the i-th device's time, in percent
 * CUDA_DEVICE_SM_LIMIT             share of every device that has none of its own
 *     A number, to a tenth (12.5), with or without a percent sign. Unset, empty, 0 and 100 or more mean: no
 *     limit.
 * CUDA_OVERSUBSCRIBE               true or 1: what exceeds the GPU's own memory goes to the host
 * GPU_CORE_UTILIZATION_POLICY      force: the share is always kept. disable: never. Everything else: while
 *                                  the monitor's switch in the usage region is on, as it is without one.
 * CUDA_DEVICE_MEMORY_SHARED_CACHE  the usage region: file that the container's processes count in (default
 *                                  /tmp/cudevshr.cache)
 * CUDA_TASK_PRIORITY               0 high, 1 low (default); recorded in the usage region for the monitor
 * RECORD_KERNEL_INTERVAL           seconds between two notes there of when a kernel ran last (default 1)
 * NVIDIA_VISIBLE_DEVICES           if a list of GPU uuids: which device is the i-th. Otherwise the devices'
 *                                  numbers say nothing (CUDA and the scheduler count differently), and each
 *                                  device gets the smallest of the limits; so does one that is not listed.
 *                                  Where there is a limits file, its order says so then.
 * LIBCUDA_LOG_LEVEL                see log.h
 * CUDA_LAUNCH_BLOCKING             the driver's own: how launches are measured goes by it
 *
 * A malformed limit never means unlimited: CUDA does not start, and says why. Other malformed values are
 * their default. CUDA_DISABLE_CONTROL, CUDA_REDIRECT, ACTIVE_OOM_KILLER and CUDA_VISIBLE_DEVICES are not
 * read: the first is the agent's, and devices are told apart by uuid.
 */
#ifndef VGPU_SETTINGS_H
#define VGPU_SETTINGS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { MAX_DEVICES = 16, UUID_BYTES = 96, WHOLE_GPU_PERMILLE = 1000, DEFAULT_PRIORITY = 1 };

enum core_policy { CORES_DEFAULT, CORES_FORCE, CORES_DISABLE }; /* numbers as in the limits file */

struct settings {
    bool active; /* something is to be limited or counted; otherwise the hook steps aside */
    bool malformed; /* a limit, or the limits file; then `problem` says what */
    char problem[256];
    char cache_path[4096];
    int log_level, priority;
    unsigned record_interval_s;
    enum core_policy core_policy;
    bool oversubscribe;
    bool launches_wait; /* the driver waits for each of them */
    size_t uuid_count; /* 0: devices are not known by uuid */
    char uuids[MAX_DEVICES][UUID_BYTES];
    uint64_t limit_bytes[MAX_DEVICES]; /* by position in uuids; 0: none */
    uint32_t core_permille[MAX_DEVICES]; /* the same; WHOLE_GPU_PERMILLE: no limit */
    uint64_t smallest_limit_bytes; /* for devices that are not in uuids */
    uint32_t smallest_core_permille;
};

extern _Atomic(const struct settings *) settings_known __attribute__((visibility("hidden")));
const struct settings *settings_gather(void);

inline const struct settings *settings(void)
{
    const struct settings *known = atomic_load_explicit(&settings_known, memory_order_acquire);
    return __builtin_expect(known != NULL, 1) ? known : settings_gather();
}

/* The limit of a device by the environment alone, by uuid; 0: none. `listed_at`: its line in the limits file,
 * which says which one it is where NVIDIA_VISIBLE_DEVICES does not; negative: it has none. */
uint64_t settings_limit_bytes(const char *uuid, int listed_at);

/* Its share of time by the environment alone, 1 to WHOLE_GPU_PERMILLE. */
uint32_t settings_core_permille(const char *uuid, int listed_at);

#endif
