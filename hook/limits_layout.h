/* Layout of the limits file: what the agent allows a container, one cache line per device.
 *
 * The agent writes it and mounts it read-only at LIMITS_PATH; processes of the container only read. Where it
 * exists it is authoritative: the environment may lower a limit, never raise it. The agent changes a line in
 * place at any time: `sequence` is odd meanwhile. Everything but the lines and the heartbeat stays as it was
 * when the container was made, and the file never shrinks. Little endian, fixed offsets; docs/limits-file.md
 * describes it, agent/domain/limits_file.py writes it.
 */
#ifndef VGPU_LIMITS_LAYOUT_H
#define VGPU_LIMITS_LAYOUT_H

#include "settings.h"

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

enum {
    LIMITS_MAGIC = 0x6d696c76, /* "vlim" */
    LIMITS_VERSION = 1,
    LIMITS_BYTES = 4096, /* of the file, at least */
    LIMITS_PATH_BYTES = 256,
};
#define LIMITS_PATH "/etc/vgpu.limits"
#define LIMITS_NAME                                                                                          \
    "vgpu.limits" /* where there is none at that path: beside the library, for use without agent */

enum { /* flags of a device */
       LIMITS_MIG = 1, /* uuid is a MIG device's */
       LIMITS_OVERSUBSCRIBE = 2, /* memory_limit_bytes may exceed the GPU's own: spill to the host */
};

enum { LIMITS_POLICY_DEFAULT, LIMITS_POLICY_FORCE, LIMITS_POLICY_DISABLE };

struct limits_device {
    _Atomic uint32_t sequence;
    uint32_t flags;
    unsigned char uuid[16];
    uint64_t memory_limit_bytes; /* 0: none */
    uint32_t core_permille; /* share of the GPU's time; 0 or >= 1000: no limit */
    uint32_t lent_permille; /* idle share of others, on top, until lent_until_ns */
    uint64_t lent_until_ns; /* CLOCK_MONOTONIC, as are all times here */
    uint64_t blocked_until_ns; /* nothing is launched before */
    /* What the agent has put into the container's environment for this device, which thus says no more than
     * this file; 0: it has not. What a process finds there instead counts. */
    uint32_t told_memory_mib, told_core_permille;
};

struct limits_file {
    uint32_t magic, version;
    uint32_t device_count; /* 1 to MAX_DEVICES */
    uint32_t core_policy;
    _Atomic uint64_t alive_at_ns; /* the agent's heartbeat while it lends or blocks; 0: never */
    uint64_t region_inode; /* the file at cache_path, if the agent has made it; 0: it has not */
    uint64_t region_id; /* what it wrote into it (region_layout.h) */
    uint64_t reserved[3];
    struct limits_device devices[MAX_DEVICES];
    /* The file the container counts in, as the container sees it; NUL-terminated, absolute. It goes before
     * CUDA_DEVICE_MEMORY_SHARED_CACHE, so that a process with another environment counts in the same file.
     * Empty: the environment says. */
    char cache_path[LIMITS_PATH_BYTES];
};

_Static_assert(sizeof(struct limits_device) == 64, "a cache line");
_Static_assert(offsetof(struct limits_device, memory_limit_bytes) == 24, "memory_limit_bytes");
_Static_assert(offsetof(struct limits_device, blocked_until_ns) == 48, "blocked_until_ns");
_Static_assert(offsetof(struct limits_device, told_memory_mib) == 56, "told_memory_mib");
_Static_assert(offsetof(struct limits_file, region_inode) == 24, "region_inode");
_Static_assert(offsetof(struct limits_file, region_id) == 32, "region_id");
_Static_assert(offsetof(struct limits_file, devices) == 64, "devices");
_Static_assert(offsetof(struct limits_file, cache_path) == 1088, "cache_path");
_Static_assert(sizeof(struct limits_file) == 1344, "limits_file");

#endif
