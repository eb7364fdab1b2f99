#include "overhead.h"
#include "depth.h"
#include "devices.h"
#include "limits.h"
#include "nvml_stride.h"
#include "real.h"
#include "reclaim.h"
#include "region.h"
#include "settings.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define MIB (UINT64_C(1) << 20)
#define CONTEXT_MOST_BYTES (2048 * MIB) /* more than any context takes; others' doing beyond it */
#define MODULE_MOST_BYTES (256 * MIB)
#define DRIFT_LEAST_BYTES (2 * MIB) /* NVML counts in pages of this size */

enum { PROCESSES_AT_FIRST = 64, PROCESSES_AT_MOST = 4096 };

/* Whether NVML lists this process by its own pid: it began to when our first context came to be. */
static _Atomic bool listed_by_own_pid;
static _Atomic uint64_t drift_bytes[MAX_DEVICES]; /* charged for what nobody asked for */
static _Atomic int64_t reconciled_at_s;
static pthread_once_t fork_once = PTHREAD_ONCE_INIT;

static void forget_after_fork(void)
{
    atomic_store(&listed_by_own_pid, false);
    for (int i = 0; i < MAX_DEVICES; i++)
        atomic_store(&drift_bytes[i], 0);
}

static void watch_forks(void)
{
    pthread_atfork(NULL, NULL, forget_after_fork);
}

/* --- what NVML says ------------------------------------------------------------------------------------- */

/* Its handle of the device at `place`; false when NVML cannot be used. */
static bool find_device(const struct real_nvml *real, int place, nvmlDevice_t *device)
{
    const struct region *region = region_mapped();
    if (!real || !region || place < 0 || !real->nvmlInit_v2 || !real->nvmlDeviceGetHandleByUUID)
        return false;
    const char *uuid = region->uuids[place];
    /* Told to look again only when it was not started: each start would be one more to end. */
    nvmlReturn_t result = real->nvmlDeviceGetHandleByUUID(uuid, device);
    if (result == NVML_ERROR_UNINITIALIZED && real->nvmlInit_v2() == NVML_SUCCESS)
        result = real->nvmlDeviceGetHandleByUUID(uuid, device);
    return result == NVML_SUCCESS;
}

/* `infos` has room for `count` of the longest entries that any driver writes. How long they are: */
static enum nvml_stride list(const struct real_nvml *real, nvmlDevice_t device, unsigned *count, void *infos,
                             nvmlReturn_t *result)
{
    *result = NVML_ERROR_FUNCTION_NOT_FOUND;
    if (real->nvmlDeviceGetComputeRunningProcesses_v3) {
        *result = real->nvmlDeviceGetComputeRunningProcesses_v3(device, count, infos);
        return nvml_stride_v3(real);
    }
    if (real->nvmlDeviceGetComputeRunningProcesses_v2)
        *result = real->nvmlDeviceGetComputeRunningProcesses_v2(device, count, infos);
    return STRIDE_V2;
}

/* What the process with this pid holds; false when it is not listed. */
static bool used_by(const struct real_nvml *real, nvmlDevice_t device, unsigned pid, uint64_t *bytes)
{
    bool found = false;
    for (unsigned room = PROCESSES_AT_FIRST; room <= PROCESSES_AT_MOST; room *= 4) {
        char *infos = calloc(room, STRIDE_DETAIL);
        unsigned count = room;
        nvmlReturn_t result = NVML_ERROR_MEMORY;
        size_t stride = infos ? (size_t)list(real, device, &count, infos, &result) : 0;
        for (unsigned i = 0; result == NVML_SUCCESS && i < count && i < room; i++) {
            struct nvml_process_info info;
            memcpy(&info, infos + i * stride, sizeof info);
            /* all bits: the driver does not tell */
            if (info.pid != pid || info.used_bytes > LEDGER_MOST_BYTES)
                continue;
            *bytes = info.used_bytes;
            found = true;
        }
        free(infos);
        if (result != NVML_ERROR_INSUFFICIENT_SIZE)
            break;
    }
    return found;
}

static unsigned pid_on_node(void)
{
    int32_t told = region_host_pid();
    return told > 0 ? (unsigned)told : (unsigned)getpid();
}

struct figures {
    uint64_t own, device;
    uint64_t held; /* what this process was charged, at most, while NVML was asked */
    bool listed, device_known;
};

static struct figures look(int place)
{
    const struct real_nvml *real = real_nvml();
    struct figures figures = {0};
    struct nvml_memory memory;
    nvmlDevice_t device;
    depth_enter();
    figures.held = region_own_bytes(place);
    if (find_device(real, place, &device)) {
        figures.listed = used_by(real, device, pid_on_node(), &figures.own);
        figures.device_known =
            real->nvmlDeviceGetMemoryInfo && real->nvmlDeviceGetMemoryInfo(device, &memory) == NVML_SUCCESS;
        figures.device = figures.device_known ? memory.used : 0;
    }
    depth_leave();
    uint64_t held = region_own_bytes(place);
    figures.held = held > figures.held ? held : figures.held;
    return figures;
}

/* What NVML counts for this process and nobody was charged. Memory is charged before the driver gives it and
 * until after the driver has it back, so what other threads are in the middle of makes this less, not more.
 */
static int64_t uncharged(const struct figures *figures)
{
    return (int64_t)(figures->own - figures->held);
}

/* --- around a call -------------------------------------------------------------------------------------- */

static enum charge_kind kind_of(const struct overhead *overhead)
{
    return overhead->of == OVERHEAD_MODULE ? CHARGE_MODULE : CHARGE_CONTEXT;
}

CUresult overhead_begin(struct overhead *overhead, CUdevice device, enum overhead_of of, const char *function)
{
    *overhead = (struct overhead){.place = -1, .of = of, .function = function};
    int place = charging() ? place_of_device(device) : -1;
    if (place < 0 || !limits_memory_bytes(place))
        return CUDA_SUCCESS;
    pthread_once(&fork_once, watch_forks);
    uint64_t ahead = of == OVERHEAD_CONTEXT ? region_context_bytes(place) : 0;
    CUresult result = charge_reclaiming(place, kind_of(overhead), ahead, function);
    if (result != CUDA_SUCCESS)
        return result;
    struct figures figures = look(place);
    overhead->place = place;
    overhead->charged_bytes = ahead;
    int64_t before = uncharged(&figures) + (int64_t)ahead;
    overhead->uncharged_before = before > 0 ? before : 0;
    overhead->listed_before = figures.listed;
    overhead->device_before = figures.device;
    overhead->device_known = figures.device_known;
    overhead->held_before = figures.held;
    return CUDA_SUCCESS;
}

void overhead_failed(struct overhead *overhead)
{
    charge_back(overhead->place, kind_of(overhead), overhead->charged_bytes);
    overhead->charged_bytes = 0;
}

/* What was taken, or (negative) given back. */
static int64_t measure(const struct overhead *overhead)
{
    struct figures now = look(overhead->place);
    if (now.listed && !overhead->listed_before)
        atomic_store(&listed_by_own_pid, true);
    if (now.listed && (atomic_load(&listed_by_own_pid) || region_host_pid() > 0))
        return uncharged(&now) + (int64_t)overhead->charged_bytes - overhead->uncharged_before;
    int64_t last = (int64_t)overhead->charged_bytes;
    /* What other threads of ours are in the middle of cannot be told from this call's doing. */
    if (!now.device_known || !overhead->device_known || now.held != overhead->held_before)
        return last;
    int64_t grown = (int64_t)(now.device - overhead->device_before);
    int64_t most = overhead->of == OVERHEAD_MODULE ? MODULE_MOST_BYTES : CONTEXT_MOST_BYTES;
    grown = grown < 0 ? 0 : grown > most ? most : grown;
    /* Others make it more rather than less: of several contexts the cheapest is the truest. */
    return last && (grown == 0 || grown > last) ? last : grown;
}

/* Make `cost` what is charged; false when that does not fit. */
static bool charge_cost(struct overhead *overhead, uint64_t cost)
{
    uint64_t charged = overhead->charged_bytes;
    bool fits = cost <= charged
        || charge_reclaiming(overhead->place, kind_of(overhead), cost - charged, overhead->function)
            == CUDA_SUCCESS;
    if (cost < charged)
        charge_back(overhead->place, kind_of(overhead), charged - cost);
    if (overhead->of == OVERHEAD_CONTEXT && cost)
        region_set_context_bytes(overhead->place, cost);
    if (fits)
        overhead->charged_bytes = cost;
    return fits;
}

bool overhead_made(struct overhead *overhead, uint64_t *bytes)
{
    *bytes = 0;
    if (overhead->place < 0)
        return true;
    int64_t cost = measure(overhead);
    if (!charge_cost(overhead, cost > 0 ? (uint64_t)cost : 0))
        return false;
    *bytes = overhead->charged_bytes;
    return true;
}

bool overhead_changed(struct overhead *overhead, int64_t *bytes)
{
    *bytes = overhead->place < 0 ? 0 : measure(overhead);
    return *bytes <= 0 || charge_cost(overhead, (uint64_t)*bytes);
}

/* --- what came without a call --------------------------------------------------------------------------- */

static bool is_time(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
    int64_t last = atomic_load_explicit(&reconciled_at_s, memory_order_relaxed), now_s = now.tv_sec;
    return now_s != last && atomic_compare_exchange_strong(&reconciled_at_s, &last, now_s);
}

uint64_t overhead_unseen_bytes(int place)
{
    return place >= 0 ? atomic_load_explicit(&drift_bytes[place], memory_order_relaxed) : 0;
}

void overhead_reconcile(int place, bool at_once)
{
    bool known = atomic_load_explicit(&listed_by_own_pid, memory_order_relaxed) || region_host_pid() > 0;
    if (!known || place < 0 || !charging() || !limits_memory_bytes(place) || (!is_time() && !at_once))
        return;
    uint64_t held = region_own_bytes(place);
    struct figures now = look(place);
    if (!now.listed || held != region_own_bytes(place))
        return; /* it changed while we looked */
    uint64_t drift = atomic_load(&drift_bytes[place]);
    if (now.own > held && now.own - held >= DRIFT_LEAST_BYTES) {
        atomic_fetch_add(&drift_bytes[place], now.own - held);
        charge_anyway(place, CHARGE_MODULE, now.own - held);
    } else if (held > now.own && drift) {
        uint64_t less = held - now.own < drift ? held - now.own : drift;
        if (atomic_compare_exchange_strong(&drift_bytes[place], &drift, drift - less))
            charge_back(place, CHARGE_MODULE, less);
    }
}
