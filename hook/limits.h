/* What this process is allowed of each device, now: the agent's limits file (limits_layout.h) where there is
 * one, lowered by the environment; else the environment, as the first process of the container wrote it into
 * the usage region. Never cached by callers: a change by the agent holds from the next call on.
 *
 * The file is /etc/vgpu.limits, or else vgpu.limits beside this library, wherever that was loaded from; no
 * environment can point elsewhere. The first goes before the second because containers may write beside the
 * library. One that is there and not in order is a problem that stops CUDA (settings.h). A line of it that
 * the agent never finished writing keeps what it said before. Thread and fork safe, no system calls, some
 * nanoseconds.
 */
#ifndef VGPU_LIMITS_H
#define VGPU_LIMITS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The limit of the device at `place` (devices.h) in bytes; 0: none. */
uint64_t limits_memory_bytes(int place);

/* Whether what exceeds the GPU's own memory is to go to the host, up to the limit. */
bool limits_oversubscribe(int place);

struct core_share {
    bool enforced; /* false: permille and lent_permille do not matter; blocked_until_ns does */
    uint32_t permille; /* 1 to 1000 of the GPU's time; 1000 is all of it */
    uint32_t container_permille; /* the container's: more than that where this process lowered its own */
    uint32_t lent_permille; /* on top until lent_until_ns; the sum may exceed 1000 */
    uint64_t lent_until_ns; /* CLOCK_MONOTONIC */
    uint64_t blocked_until_ns; /* nothing is to be launched before; never believe more than 1 s from now */
};

/* `enforced` is false where there is no limit, where policy is `disable`, and where it is `default` and the
 * monitor's switch is off. */
struct core_share limits_core(int place);

/* A word that is another one whenever limits_core may say something else; where a share is to be kept, the
 * monitor's switch is another. NULL: there is none, or the region is not open. */
const _Atomic uint32_t *limits_core_word(int place);

/* --- for settings.c and the region -----------------------------------------------------------------------
 */

enum limits_state { LIMITS_ABSENT, LIMITS_IN_FORCE, LIMITS_UNUSABLE };

/* Find and map the file; `problem` says what is wrong with one that is unusable. Once, before all others;
 * `problem` is empty. */
enum limits_state limits_open(char *problem, size_t problem_bytes);

/* The usage region it names, or "". */
const char *limits_cache_path(void);

/* The usage region as the agent has made it: its inode, and the id in it. Inode 0: it has made none. */
struct made_region {
    uint64_t inode, id;
};
struct made_region limits_region(void);

/* Uuid of the i-th device that it lists, as text of at most 41 bytes; false past the last. */
bool limits_uuid(int i, char *text);

/* The device at `place` is the one with this uuid. */
void limits_place(int place, const char *uuid);

#endif
