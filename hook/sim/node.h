/* What the simulated driver is told to be: the text file named by VGPU_SIM_DRIVER, parsed.
 *
 * The statements, one per line, are described in docs/simulated-driver.md:
 *
 *   driver_version 570.86.15
 *   cuda_version 12080
 *   driver ok | absent | mismatch
 *   gpu N uuid=GPU-... [name="NVIDIA A40"] [memory_mib=46068 | unsupported] [reserved_mib=0]
 *         [numa=0 | unsupported] [bus=00000000:17:00.0] [minor=N] [serial=...] [cc=8.6] [mig=on | off]
 *         [events=xid,ecc | none] [gpu_percent=0] [memory_percent=0]
 *         [context_mib=0] [context_ms=0] [module_mib=0] [pool_step_mib=32] [page_mib=0]
 *         [compute_mode=0]
 *   mig N POSITION uuid=MIG-... [gi=7] [ci=0] [memory_mib=4864]
 *   lost gpu=N
 *   xid SEQUENCE gpu=N code=79 [gi=1 ci=0]
 *   ecc SEQUENCE gpu=N kind=double | single
 *   enumeration live | fixed
 *   hang
 *   fail call=nvmlDeviceGetMemoryInfo code=999 [gpu=N]
 *   hold call=cuMemAlloc_v2      before it does anything; cuMemReleased, cuMulticastUnbound: when it is done
 *   process gpu=N pid=123 [memory_mib=500] [type=compute | graphics] [sm_percent=0] [gi=1 ci=0]
 *   nvlink N M | switch links=4 [back=4]
 *   topology N M level=internal | single | multiple | hostbridge | node | system
 *   kernel_us 50
 *   pids visible | hidden
 *   kernel NAME us=50 | us=2..200000 [one_in=100 | after=100 | alike=100] [meets=2]
 *   slice_us 2000
 *   launch_us 2
 *   event_ns 0
 *   event_step_ns 0
 *   queue_depth 1024
 *   connections 8
 *   drift_ppm 20
 *   clock real | virtual
 *   absent call=cuMemCreate
 *   green_contexts same | apart
 *
 * The file is looked at on every call and read again when its inode, size or time changed. A file that does
 * not parse leaves the last good one in force and is reported once on stderr. Thread safe.
 */
#ifndef VGPU_SIM_NODE_H
#define VGPU_SIM_NODE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    MAX_GPUS = 64,
    MAX_MIGS = 8,
    MAX_PARTS = 64,
    MAX_EVENTS = 256,
    MAX_PROCESSES = 512,
    MAX_FAILURES = 512,
    MAX_PAIRS = 512,
    MAX_KERNELS = 64,
    MAX_ABSENT = 512
};
enum { TEXT_BYTES = 96, UNKNOWN = -1 };
enum sim_driver { DRIVER_OK, DRIVER_ABSENT, DRIVER_MISMATCH };

struct sim_mig {
    bool present;
    char uuid[TEXT_BYTES];
    unsigned gpu_instance, compute_instance;
    unsigned slices, compute_slices, multiprocessors;
    uint64_t memory_mib;
};

struct sim_gpu {
    long number; /* as written in its line; lines are sorted by it */
    char uuid[TEXT_BYTES], name[TEXT_BYTES], serial[TEXT_BYTES];
    char bus_id[32];
    int64_t memory_mib; /* UNKNOWN: not supported */
    int64_t reserved_mib;
    unsigned compute_mode; /* NVML's number; CUDA does not go by it here */
    uint64_t context_mib, module_mib; /* what each takes of the memory */
    long
        context_ms; /* how long the first context of a process takes, half of it with its memory; real time */
    uint64_t pool_step_mib; /* what pools grow by; 0: by what is asked for */
    uint64_t page_mib; /* that memory by address takes whole; 0: what is asked for, in 512 bytes */
    int numa_node; /* UNKNOWN: not supported */
    unsigned minor_number, cc_major, cc_minor, gpu_percent, memory_percent;
    unsigned multiprocessors; /* 0: as many as any */
    int parent; /* of a MIG device, position in gpus; -1: this is a GPU */
    unsigned long long event_types;
    bool mig, pending_mig, lost;
    struct sim_mig migs[MAX_MIGS];
};

struct sim_event {
    uint64_t number;
    int gpu; /* position in gpus, or -1: a GPU that is not there */
    unsigned long long type, data;
    unsigned gpu_instance, compute_instance;
};

struct sim_process {
    int gpu;
    unsigned pid, sm_percent;
    unsigned gpu_instance, compute_instance; /* NVML_NO_INSTANCE: of the whole GPU */
    uint64_t memory_mib;
    long from_mib; /* holds its memory while programs hold as much of the GPU */
    bool graphics;
};

struct sim_failure {
    char call[64];
    int code;
    int gpu; /* -1: any */
};

/* How long kernels of this name run: anything from low to high, each magnitude as likely as the others; or
 * low, and one in so many by chance high; or the first ones of a process low, and all others high; or so many
 * of a process in a row alike low or high. */
struct sim_kernel {
    char name[64];
    uint64_t low_ns, high_ns;
    unsigned high_one_in; /* 0: anything, or */
    unsigned high_after; /* so many */
    unsigned alike; /* so many */
    long gpu; /* number of the one that this is for, or ANY_GPU */
    unsigned meets; /* works only while so many GPUs have begun theirs of the same number; 0: alone */
};

enum { ANY_GPU = -1 };

struct sim_pair {
    int first, second; /* second -1: a switch */
    int level; /* -1: says nothing about topology */
    unsigned links, links_back;
};

struct sim_node {
    enum sim_driver driver;
    char held[64]; /* a CUDA call that waits until it is not any more; or none */
    bool hang, fixed_enumeration, hidden_pids;
    char driver_version[80];
    int cuda_version;
    bool virtual_clock;
    bool green_apart; /* a green context is another pointer than its CUcontext */
    unsigned kernel_us, slice_us, launch_us, event_ns, event_step_ns, queue_depth, connections, drift_ppm;
    size_t gpu_count, event_count, process_count, failure_count, pair_count, kernel_count, absent_count;
    struct sim_gpu gpus[MAX_GPUS];
    size_t part_count;
    struct sim_gpu parts[MAX_PARTS]; /* MIG devices, as CUDA sees them */
    bool divisible; /* a GPU can be divided through NVML: its state has to be looked at, too */
    struct sim_event events[MAX_EVENTS];
    struct sim_process processes[MAX_PROCESSES];
    struct sim_failure failures[MAX_FAILURES];
    struct sim_pair pairs[MAX_PAIRS];
    struct sim_kernel kernels[MAX_KERNELS];
    char absent[MAX_ABSENT][64]; /* functions that this driver lacks */
    unsigned readers; /* guarded by the lock of node.c */
};

/* Parse `text`, which has `length` bytes before its closing NUL. On failure false, and `problem` says what is
 * wrong in which line.
 */
bool sim_node_parse(struct sim_node *node, char *text, size_t length, char *problem, size_t problem_bytes);

/* The configuration in force, held until sim_node_release; NULL when there never was a good one. */
const struct sim_node *sim_node_acquire(void);
void sim_node_release(const struct sim_node *node);

/* A file beside the configuration has a shorter path: small stacks are to be large enough for the driver. */
enum { SIM_PATH_BYTES = 1024 };

/* Path of the configuration; NULL when VGPU_SIM_DRIVER is not set. Valid for ever. */
const char *sim_node_path(void);

/* Ask the environment again, so that one test process can play several nodes in turn. */
void sim_node_look_again(void);

/* Position of the GPU with this uuid, or -1. */
int sim_node_find(const struct sim_node *node, const char *uuid);

/* The MIG device with this uuid as a GPU of its own, or NULL. */
const struct sim_gpu *sim_node_part(const struct sim_node *node, const char *uuid);

/* Whether this process may see a device of this uuid: NVIDIA_VISIBLE_DEVICES names it, or its GPU, or all. */
bool sim_node_shows(const struct sim_node *node, int position, const char *uuid);

/* The code that `call` must fail with (for this GPU position, or -1), or 0. */
int sim_node_failure(const struct sim_node *node, const char *call, int gpu);

/* Whether the driver lacks this function. */
bool sim_node_lacks(const struct sim_node *node, const char *call);

/* Whether time is virtual: VGPU_SIM_CLOCK (real, virtual), else what the configuration says. */
bool sim_node_virtual_clock(const struct sim_node *node);

/* Positions of the GPUs this process may see (NVIDIA_VISIBLE_DEVICES, as a container toolkit would inject
 * them: by bus order, whatever the order of the list), at most MAX_GPUS. Unset means all: not in a container.
 */
size_t sim_node_visible(const struct sim_node *node, int positions[MAX_GPUS]);

#endif
