#include "region.h"
#include "counters.h"
#include "limits.h"
#include "log.h"
#include "loose.h"
#include "region_file.h"
#include "region_slots.h"
#include "shortage.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { CORRECTIONS = 16 };
#define SWEEP_PAUSE_NS (UINT64_C(100) * 1000000)
/* A correction from figures that are older is not made: the ledger's count of changes might have come round.
 */
#define FIGURES_LAST_NS (UINT64_C(300) * 1000)

_Atomic(struct region *) region_known;

static pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t watching = PTHREAD_ONCE_INIT;
static atomic_bool leaving; /* the process ends, and is not to be shown again */
static _Atomic(const char *) last_problem, last_advice;
static _Atomic uint64_t looked_at_ns; /* when this process last saw to the dead */
static _Atomic int opened; /* our slot's lock is taken by it; another file may have the number since */

/* A child that is forked while we take a slot keeps neither the open file nor its mapping, or our lock would
 * live on in it. That of vfork or posix_spawn has its own descriptor only until it executes a program. */
static void forget_after_fork(void)
{
    loose_store(&region_mine, NULL);
    loose_store(&leaving, false);
    slots_forget();
    region_own_forget();
    if (region_file_is(atomic_load(&opened)))
        close(atomic_load(&opened));
    pthread_mutex_init(&opening, NULL);
}

/* A process that ends in good order is not shown any more, though its other handlers and threads may go on
 * for a while. What it holds counts until it is gone: the driver frees its memory only then. */
static void leave(void)
{
    struct region_slot *slot = atomic_load(&region_mine);
    if (!slot || atomic_load(&slot->pid) != (int32_t)getpid() || !slot_is_mine(slot))
        return;
    atomic_store(&leaving, true);
    atomic_store(&slot->status, 0);
}

/* Not by a destructor: the loader would call it, and touch us, in every process of the container. */
static void watch_forks_and_exit(void)
{
    pthread_atfork(NULL, NULL, forget_after_fork);
    atexit(leave);
}

static struct ledger *ledger_of(struct region *region, int place)
{
    return &region_tail(region)->devices[place].ledger;
}

/* --- the dead ------------------------------------------------------------------------------------------- */

/* Make the ledger agree with the slots. While they are being changed their sum is only an upper bound: then
 * the ledger is lowered to it at most. */
static void correct(struct region *region, int place)
{
    struct ledger *ledger = ledger_of(region, place);
    for (int attempt = 0; attempt < CORRECTIONS; attempt++) {
        uint64_t began_ns = now_ns();
        uint64_t seen = ledger_read(ledger);
        struct holdings all = slots_hold(region, place);
        uint64_t used = ledger_bytes_in(seen);
        if (all.bytes == used || (!all.settled && all.bytes > used)) {
            if (all.settled || attempt + 1 == CORRECTIONS)
                return;
            continue;
        }
        if (now_ns() - began_ns > FIGURES_LAST_NS || !ledger_correct(ledger, seen, all.bytes))
            continue;
        count_more(&region_tail(region)->devices[place].corrections, 1);
        if (all.settled)
            return;
    }
}

static void sweep(struct region *region)
{
    int fd = region_file_reopen();
    slots_sweep(region, fd);
    if (fd >= 0)
        close(fd);
    atomic_fetch_add(&region_tail(region)->sweeps, 1);
    for (int i = 0; i < MAX_DEVICES; i++)
        if (region_has_device(region, i))
            correct(region, i);
}

/* Monitors skip slots that are marked free; a sweeper that was stopped for long may have marked ours so. */
static void mark_mine_running(void)
{
    struct region_slot *slot = atomic_load(&region_mine);
    int32_t unused = 0;
    if (slot && slot_is_mine(slot) && !atomic_load(&leaving))
        atomic_compare_exchange_strong(&slot->status, &unused, 1);
}

/* Look for the dead if nobody in the container did for a while. */
static void sweep_now_and_then(struct region *region)
{
    uint64_t now = coarse_now_ns(), last = atomic_load_explicit(&looked_at_ns, memory_order_relaxed);
    if (now - last < SWEEP_PAUSE_NS || !atomic_compare_exchange_strong(&looked_at_ns, &last, now))
        return;
    _Atomic uint64_t *swept_at_ns = &region_tail(region)->swept_at_ns;
    uint64_t swept = loose_load(swept_at_ns);
    mark_mine_running();
    if (now - swept >= SWEEP_PAUSE_NS && atomic_compare_exchange_strong(swept_at_ns, &swept, now))
        sweep(region);
}

/* --- opening and joining -------------------------------------------------------------------------------- */

const char *region_problem(void)
{
    const char *problem = loose_load(&last_problem);
    return problem ? problem : "";
}

const char *region_advice(void)
{
    const char *advice = loose_load(&last_advice);
    return advice ? advice : "";
}

static void failed(const char *problem)
{
    int error = errno;
    const char *advice = strcmp(problem, strerror(error)) != 0 ? NULL
        : error == EFBIG                                       ? "raise its limit (ulimit -f)"
                                                               : shortage_advice(error);
    loose_store(&last_advice,
                advice ? advice
                    : limits_region().inode
                    ? "delete the pod, so that the node's vGPU agent makes it anew"
                    : "let this process write there and delete what is no usage region");
    loose_store(&last_problem, problem); /* a literal, or strerror's of an errno that Linux has: a constant */
    log_error("cannot count memory in %s: %s", settings()->cache_path, problem);
}

bool region_open(void)
{
    if (region_mapped())
        return true;
    pthread_once(&watching, watch_forks_and_exit);
    pthread_mutex_lock(&opening);
    if (!region_mapped()) {
        const char *problem = "";
        struct region *region = region_file_open(&problem);
        if (!region)
            failed(problem);
        atomic_store(&region_known, region);
    }
    pthread_mutex_unlock(&opening);
    return region_mapped() != NULL;
}

/* A slot for this process, if need be that of a dead one. NULL with errno set. */
static struct region_slot *take_slot(struct region *region, bool *before)
{
    int fd = region_file_reopen_noted(&opened);
    if (fd < 0)
        return NULL;
    struct region_slot *slot = slot_take(region, fd, before);
    if (!slot && errno == EUSERS && slots_sweep(region, fd) > 0)
        slot = slot_take(region, fd, before);
    int error = errno;
    close(fd);
    errno = error;
    return slot;
}

bool region_join(void)
{
    if (atomic_load_explicit(&region_mine, memory_order_acquire))
        return true;
    if (!region_open())
        return false;
    struct region *region = region_mapped();
    pthread_mutex_lock(&opening);
    if (!atomic_load(&region_mine)) {
        bool before = false;
        struct region_slot *slot = take_slot(region, &before);
        if (!slot)
            failed(errno == EUSERS ? "all its places are taken" : strerror(errno));
        else if (before || loose_load(&region_tail(region)->sweeps) == 0)
            sweep(region); /* when it was never done, processes of HAMi-core may count here already */
        loose_store(&brief_pid, getpid());
        atomic_store(&region_mine, slot);
    }
    pthread_mutex_unlock(&opening);
    sweep_now_and_then(region);
    return atomic_load(&region_mine) != NULL;
}

/* --- bytes ---------------------------------------------------------------------------------------------- */

uint64_t region_used_bytes(int place)
{
    struct region *region = region_mapped();
    if (!region || place < 0)
        return 0;
    sweep_now_and_then(region);
    return ledger_used(ledger_of(region, place));
}

void region_sweep(void)
{
    if (region_join())
        sweep(region_mapped());
}
