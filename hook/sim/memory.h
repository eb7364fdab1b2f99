/* Device memory in use, by process and GPU: one file, mapped by every process of the simulated node.
 *
 * The file is `<configuration>.state`. All changes happen under flock, which dies with its holder. The share
 * of a process counts until its device file is closed everywhere (children have that as well, as those of the
 * real driver, which frees memory only then); its row is taken over then. It is the same file, opened once
 * more and locked at a byte of its own. All processes must see each other's pids, so they share one pid
 * namespace. Thread safe, fork safe.
 */
#ifndef VGPU_SIM_MEMORY_H
#define VGPU_SIM_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct sim_share {
    unsigned pid;
    uint64_t bytes;
};

/* Bytes of this GPU that living processes hold. */
uint64_t sim_memory_used(const char *uuid);

/* Which living processes hold how much of this GPU, a context counting as a share of 0 bytes and more.
 * Returns how many there are; fills at most `room` of them. */
size_t sim_memory_shares(const char *uuid, struct sim_share *shares, size_t room);

enum sim_memory_answer { SIM_MEMORY_DONE, SIM_MEMORY_FULL, SIM_MEMORY_BROKEN };

/* Add `bytes` (0: just be listed) to this process's share if the whole GPU then holds at most
 * `capacity_bytes`. */
enum sim_memory_answer sim_memory_take(const char *uuid, uint64_t bytes, uint64_t capacity_bytes);

/* Memory that several processes hold is its owner's: who made it, and once that has let go of it whoever
 * imported it next. In memory that all of them map. */
enum { SIM_HOLDERS = 32 };

struct sim_sharing {
    uint64_t bytes; /* of the GPU */
    struct sim_holder {
        uint32_t pid; /* 0: nobody, nor any later one */
        uint64_t start_time;
        uint64_t opening; /* of its device file: which of the programs that it has executed holds it */
    } holders[SIM_HOLDERS]; /* the owner first */
};

/* This process holds it as well; false where no more may. */
bool sim_memory_hold(struct sim_sharing *sharing);

/* This process has let go of it, as often as it held it: it is the next one's, or given back. */
void sim_memory_let_go(const char *uuid, struct sim_sharing *sharing);

/* Give back. With `leave` the process is no longer listed on this GPU. */
void sim_memory_give(const char *uuid, uint64_t bytes, bool leave);

#endif
