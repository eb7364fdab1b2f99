/* Layout of the shared region, HAMi-core version 1.2, and of our part behind it. An ABI: offsets are pinned.
 * Fields that only other programs use are opaque bytes here.
 */
#ifndef VGPU_REGION_LAYOUT_H
#define VGPU_REGION_LAYOUT_H

#include "ledger.h"
#include "settings.h"

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

enum {
    REGION_MAGIC = 19920718,
    REGION_MAJOR = 1,
    REGION_MINOR = 2,
    REGION_SLOTS = 1024,
    REGION_BYTES = 2008952,
    TAIL_OFFSET = 2031616, /* the next multiple of 64 KiB: pages of any size can map it */
    TAIL_BYTES = 8192,
    TAIL_VERSION = 2,
    REFUSALS = 32,
    TAIL_MAGIC = 0x75706776, /* "vgpu" */
};

/* What a process holds of a device. While it changes, the total is more than its parts (region_slots.h). The
 * last three are ours, as is what follows `sm_percent` below: nothing there is used by HAMi-core. */
struct region_usage {
    _Atomic uint64_t context_bytes, module_bytes, data_bytes;
    uint64_t offset;
    _Atomic uint64_t total_bytes;
    _Atomic uint64_t peak_bytes;
    _Atomic uint64_t charged_ns, throttled_ns; /* counters */
};

struct region_utilisation {
    uint64_t decoder_percent, encoder_percent; /* other programs' */
    _Atomic uint64_t sm_percent; /* of the GPU's time, for monitors (busy.h) */
    _Atomic uint64_t refusals; /* a counter */
    _Atomic uint64_t counts_since; /* start time of the process that keeps these counters */
    uint64_t unused;
};

struct region_slot {
    _Atomic int32_t pid; /* as the process sees it */
    _Atomic int32_t host_pid; /* for the agent to fill in */
    struct region_usage used[MAX_DEVICES];
    uint64_t monitor_used[MAX_DEVICES];
    struct region_utilisation utilisation[MAX_DEVICES];
    _Atomic int32_t status; /* for readers: 0 free, 1 running, 2 suspended by another program */
    _Atomic uint32_t pid_namespace; /* its inode number, and what tells time namespaces apart; 0: not known */
    _Atomic uint64_t
        sequence; /* even: not being written, for readers of version 1.2; ours are single words */
    _Atomic uint64_t start_time; /* of the process, so that a reused pid is told apart; unused in HAMi-core */
    _Atomic uint64_t owner; /* see region_slots.h; 0: free, or of HAMi-core if status says so */
};

struct region {
    _Atomic int32_t magic; /* written last */
    uint32_t major, minor;
    int32_t sm_init;
    uint64_t owner_pid;
    unsigned char lock[32]; /* a semaphore of other programs, left unlocked */
    _Atomic uint64_t device_count;
    char uuids[MAX_DEVICES][UUID_BYTES];
    _Atomic uint64_t limit_bytes[MAX_DEVICES];
    _Atomic uint64_t sm_percent[MAX_DEVICES];
    struct region_slot slots[REGION_SLOTS];
    _Atomic int32_t slot_count; /* slots in use lie before it */
    _Atomic int32_t utilisation_switch; /* the monitor's: shares of time are to be kept */
    _Atomic int32_t recent_kernel; /* < 0: the monitor blocks us; set to 2 by whoever launches (leases.h) */
    _Atomic int32_t priority;
    _Atomic uint64_t last_kernel_time_s;
    unsigned char start_lock[32];
};

/* What the container holds and has spent of one device, in our part of the file. */
struct region_device {
    struct ledger ledger;
    _Atomic uint64_t peak_bytes;
    _Atomic uint64_t refusals, refused_bytes; /* counters */
    _Atomic uint64_t
        context_bytes; /* what a context cost when one was made last; odd: a guess; 0: not known */
    _Atomic uint64_t underflows; /* how often more was given back than was taken: a fault of ours */
    _Atomic uint64_t corrections; /* how often the ledger was made to agree with the living */
    uint64_t reserved0[1];

    /* GPU time, a line of its own: every launch that takes from the budget writes here. */
    _Atomic int64_t budget_ns; /* negative: in debt */
    _Atomic uint64_t refilled_at_ns; /* CLOCK_MONOTONIC */
    _Atomic uint64_t charged_ns, throttled_ns, launches, waits; /* counters */
    _Atomic uint64_t contended_at_ns; /* CLOCK_MONOTONIC: when others were last seen to have the GPU */
    _Atomic uint64_t overlong_at_ns; /* the same: when a launch was last seen to run for far too long */

    /* What charged_ns was at two moments, the older first (busy.h). */
    _Atomic uint64_t seen_at_ns[2], seen_charged_ns[2];

    _Atomic uint64_t least_had; /* of the processes that want GPU time: how much and when (throttle.h) */
    _Atomic uint64_t
        caught_up_at_ns; /* CLOCK_MONOTONIC: until then what came due unspent may be (throttle.h) */
    _Atomic uint64_t waits_at_ns; /* the same: when a launch was last seen that may wait for another GPU, */
    _Atomic uint64_t let_out_at_ns; /* when one there was last held, or let out, meanwhile, */
    _Atomic uint64_t waited_until_ns; /* when such a one ended last, */
    _Atomic uint64_t ended_at_ns[4]; /* and the last ones that were measured; */
    _Atomic int64_t met; /* how often such a one ended with one on another GPU (credit.h) */
    _Atomic uint64_t waited_since_ns; /* when the one that ended at waited_until_ns had begun */
    uint64_t reserved2[1];
};

#define REFUSAL_WRITING (UINT64_C(1) << 63)

/* An allocation that was refused; the newest REFUSALS of them, at (number - 1) modulo REFUSALS. */
struct region_refusal {
    _Atomic uint64_t number; /* counts from 1; 0: never written; with REFUSAL_WRITING: not yet whole */
    uint64_t time_ns; /* CLOCK_REALTIME */
    int32_t pid, device; /* who asked, as the container sees it; of which place */
    uint64_t asked_bytes, used_bytes, limit_bytes;
    uint64_t largest_bytes; /* what the process that held most held */
    int32_t largest_pid; /* 0: nobody held anything */
    int32_t reserved;
    char function[32]; /* of the driver */
};

struct region_tail {
    _Atomic uint32_t magic;
    uint32_t version;
    _Atomic uint32_t sweeps; /* how often the slots of the dead were looked for */
    _Atomic uint32_t
        slots_backed; /* slots before it have blocks on the disk: all, since the file is made so */
    _Atomic uint64_t refusal_count;
    _Atomic uint64_t swept_at_ns; /* when they were looked for last without a refusal; CLOCK_MONOTONIC */
    uint64_t id; /* of the agent's choice, also in the limits file; 0: the agent has not made the file */
    _Atomic uint64_t asked_at_ns; /* when a monitor that blocks us was asked whether it lives;
                                     CLOCK_MONOTONIC. 0: nobody waits for it */
    uint64_t reserved1[2];
    struct region_device devices[MAX_DEVICES];
    struct region_refusal refusals[REFUSALS];
};

_Static_assert(sizeof(struct region_usage) == 64, "used");
_Static_assert(sizeof(struct region_utilisation) == 48, "utilisation");
_Static_assert(sizeof(struct region_slot) == 1960, "slot");
_Static_assert(sizeof(struct region) == REGION_BYTES, "region");
_Static_assert(sizeof(struct region_device) == 256, "device");
_Static_assert(offsetof(struct region_device, budget_ns) == 64, "budget_ns");
_Static_assert(sizeof(struct region_refusal) == 96, "refusal");
_Static_assert(offsetof(struct region_tail, id) == 32, "id");
_Static_assert(offsetof(struct region_tail, asked_at_ns) == 40, "asked_at_ns");
_Static_assert(offsetof(struct region_tail, devices) == 64, "devices");
_Static_assert(sizeof(struct region_tail) <= TAIL_BYTES, "tail");
#define AT(field, offset) _Static_assert(offsetof(struct region, field) == (offset), #field)
AT(owner_pid, 16);
AT(lock, 24);
AT(device_count, 56);
AT(uuids, 64);
AT(limit_bytes, 1600);
AT(sm_percent, 1728);
AT(slots, 1856);
AT(slot_count, 2008896);
AT(utilisation_switch, 2008900);
AT(last_kernel_time_s, 2008912);
#undef AT
#define AT(field, offset) _Static_assert(offsetof(struct region_slot, field) == (offset), #field)
AT(used, 8);
AT(monitor_used, 1032);
AT(utilisation, 1160);
AT(status, 1928);
AT(sequence, 1936);
AT(start_time, 1944);
AT(owner, 1952);
#undef AT

#endif
