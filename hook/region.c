#include "region.h"
#include "log.h"
#include "process.h"
#include "region_file.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>

enum { LOCK_PATIENCE_MS = 5000, SWEEP_PATIENCE_MS = 20, CORRECTIONS = 16, SWEEP_PAUSE_MS = 100 };

static _Atomic(struct region *) mapped;
static _Atomic(struct region_slot *) mine; /* NULL: not joined */
static pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t fork_once = PTHREAD_ONCE_INIT;
static _Atomic int64_t swept_at_ms;

static struct ledger *ledger_of(struct region *region, int device)
{
    return &region_tail(region)->devices[device].ledger;
}

static void forget_after_fork(void)
{
    atomic_store(&mine, NULL);
    pthread_mutex_init(&opening, NULL);
}

static void watch_forks(void)
{
    pthread_atfork(NULL, NULL, forget_after_fork);
}

bool region_open(void)
{
    if (atomic_load(&mapped))
        return true;
    pthread_once(&fork_once, watch_forks);
    pthread_mutex_lock(&opening);
    if (!atomic_load(&mapped)) {
        int fd = region_file_lock(LOCK_PATIENCE_MS);
        if (fd >= 0) {
            atomic_store(&mapped, region_file_map(fd));
            region_file_unlock(fd);
        }
        if (!atomic_load(&mapped))
            log_error("cannot count memory in %s: %s", settings()->cache_path, strerror(errno));
    }
    pthread_mutex_unlock(&opening);
    return atomic_load(&mapped) != NULL;
}

/* --- slots ---------------------------------------------------------------------------------------------- */

static int32_t slot_count(struct region *region)
{
    int32_t count = atomic_load(&region->slot_count);
    return count < 0 ? 0 : count > REGION_SLOTS ? REGION_SLOTS : count;
}

static bool living(struct region_slot *slot)
{
    /* Slots that HAMi-core took have no start time: then the pid alone must do. */
    return atomic_load(&slot->status) != 0
        && !process_gone(atomic_load(&slot->pid), atomic_load(&slot->start_time));
}

static void clear_slot(struct region_slot *slot)
{
    for (int i = 0; i < MAX_DEVICES; i++) {
        atomic_store(&slot->used[i].total_bytes, 0);
        atomic_store(&slot->used[i].data_bytes, 0);
        atomic_store(&slot->used[i].context_bytes, 0);
        atomic_store(&slot->used[i].module_bytes, 0);
    }
    slot->host_pid = 0;
    atomic_store(&slot->status, 0);
    atomic_store(&slot->start_time, 0);
    atomic_store(&slot->pid, 0); /* last: from here on it may be taken */
}

/* Make the ledger agree with the slots. */
static void correct(struct region *region, int device)
{
    for (int attempt = 0; attempt < CORRECTIONS; attempt++) {
        uint64_t seen = ledger_read(ledger_of(region, device)), held = 0;
        for (int32_t i = 0; i < slot_count(region); i++) {
            struct region_slot *slot = &region->slots[i];
            if (atomic_load(&slot->status) != 0)
                held += atomic_load(&slot->used[device].total_bytes);
        }
        if (held == ledger_used(ledger_of(region, device))
            || ledger_correct(ledger_of(region, device), seen, held))
            return;
    }
}

/* Free the slots of the dead. Called with the file's lock held: nobody takes a slot meanwhile. */
static void sweep(struct region *region)
{
    for (int32_t i = 0; i < slot_count(region); i++) {
        struct region_slot *slot = &region->slots[i];
        if (slot == atomic_load(&mine) || atomic_load(&slot->pid) == 0 || living(slot))
            continue;
        clear_slot(slot);
    }
    atomic_fetch_add(&region_tail(region)->sweeps, 1);
}

static void correct_all(struct region *region)
{
    for (int i = 0; i < MAX_DEVICES; i++)
        if (region->uuids[i][0])
            correct(region, i);
}

/* Take the memory of the dead back. Many that are refused at once do it together: of two sweeps that end
 * while we wait for our turn, the second began after we were refused. */
static void sweep_and_correct(struct region *region)
{
    uint32_t before = atomic_load(&region_tail(region)->sweeps);
    int fd = region_file_lock(SWEEP_PATIENCE_MS);
    if (fd >= 0) {
        if (atomic_load(&region_tail(region)->sweeps) - before < 2)
            sweep(region);
        region_file_unlock(fd);
    }
    correct_all(region);
}

/* Called with the file's lock held. */
static struct region_slot *take_slot(struct region *region, int fd)
{
    int32_t me = (int32_t)getpid();
    for (int32_t i = 0; i < REGION_SLOTS; i++) {
        struct region_slot *slot = &region->slots[i];
        bool left_by_me = atomic_load(&slot->pid) == me; /* exec keeps the pid, and an old pid comes again */
        if (atomic_load(&slot->pid) != 0 && !left_by_me)
            continue;
        if (!region_file_back(fd, offsetof(struct region, slots) + (size_t)i * sizeof *slot, sizeof *slot))
            return NULL;
        clear_slot(slot);
        atomic_store(&slot->start_time, process_start_time(me));
        atomic_store(&slot->pid, me);
        atomic_store(&slot->status, 1);
        if (slot_count(region) <= i)
            atomic_store(&region->slot_count, i + 1);
        return slot;
    }
    errno = EUSERS;
    return NULL;
}

bool region_join(void)
{
    if (!region_open())
        return false;
    if (atomic_load(&mine))
        return true;
    struct region *region = atomic_load(&mapped);
    pthread_mutex_lock(&opening);
    if (!atomic_load(&mine)) {
        int fd = region_file_lock(LOCK_PATIENCE_MS);
        if (fd >= 0) {
            sweep(region);
            atomic_store(&mine, take_slot(region, fd));
            region_file_unlock(fd);
        }
        if (atomic_load(&mine))
            correct_all(region);
        else
            log_error("cannot take a place in %s: %s", settings()->cache_path, strerror(errno));
    }
    pthread_mutex_unlock(&opening);
    return atomic_load(&mine) != NULL;
}

/* A process that ends in good order leaves at once; the others are swept by those that stay. */
static __attribute__((destructor)) void leave(void)
{
    struct region *region = atomic_load(&mapped);
    struct region_slot *slot = atomic_exchange(&mine, NULL);
    if (!region || !slot || atomic_load(&slot->pid) != (int32_t)getpid())
        return;
    for (int i = 0; i < MAX_DEVICES; i++)
        ledger_release(ledger_of(region, i), atomic_load(&slot->used[i].total_bytes));
    clear_slot(slot);
}

/* --- devices -------------------------------------------------------------------------------------------- */

static int find_device(struct region *region, const char *uuid)
{
    for (int i = 0; i < MAX_DEVICES; i++)
        if (strncmp(region->uuids[i], uuid, UUID_BYTES) == 0)
            return i;
    return -1;
}

int region_device(const char *uuid)
{
    if (!uuid[0] || strlen(uuid) >= UUID_BYTES || !region_open())
        return -1;
    struct region *region = atomic_load(&mapped);
    int device = find_device(region, uuid);
    if (device >= 0)
        return device;
    int fd = region_file_lock(LOCK_PATIENCE_MS);
    if (fd < 0)
        return -1;
    device = find_device(region, uuid); /* another process may have been faster */
    for (int i = 0; device < 0 && i < MAX_DEVICES; i++) {
        if (region->uuids[i][0])
            continue;
        atomic_store(&region->limit_bytes[i], settings_limit_bytes(uuid));
        memcpy(region->uuids[i], uuid, strlen(uuid) + 1);
        atomic_store(&region->device_count, (uint64_t)i + 1);
        device = i;
    }
    region_file_unlock(fd);
    return device;
}

uint64_t region_limit_bytes(int device)
{
    struct region *region = atomic_load(&mapped);
    if (!region || device < 0)
        return 0;
    uint64_t limit_bytes = atomic_load(&region->limit_bytes[device]);
    return limit_bytes ? limit_bytes : settings_limit_bytes(region->uuids[device]);
}

uint64_t region_used_bytes(int device)
{
    struct region *region = atomic_load(&mapped);
    if (!region || device < 0)
        return 0;
    int64_t now = now_ms(), last = atomic_load(&swept_at_ms);
    if (now - last >= SWEEP_PAUSE_MS && atomic_compare_exchange_strong(&swept_at_ms, &last, now))
        sweep_and_correct(region);
    return ledger_used(ledger_of(region, device));
}

/* --- bytes ---------------------------------------------------------------------------------------------- */

static _Atomic uint64_t *part(struct region_slot *slot, int device, enum charge_kind kind)
{
    struct region_usage *used = &slot->used[device];
    return kind == CHARGE_CONTEXT ? &used->context_bytes
        : kind == CHARGE_MODULE   ? &used->module_bytes
                                  : &used->data_bytes;
}

static void add_to_slot(struct region_slot *slot, int device, enum charge_kind kind, uint64_t bytes)
{
    atomic_fetch_add(&slot->used[device].total_bytes, bytes);
    atomic_fetch_add(part(slot, device, kind), bytes);
}

static void take_from_slot(struct region_slot *slot, int device, enum charge_kind kind, uint64_t bytes)
{
    atomic_fetch_sub(part(slot, device, kind), bytes);
    atomic_fetch_sub(&slot->used[device].total_bytes, bytes);
}

static bool fits(struct region *region, int device, uint64_t limit_bytes, uint64_t bytes)
{
    uint64_t used = ledger_used(ledger_of(region, device));
    return !limit_bytes || (bytes <= limit_bytes && used <= limit_bytes - bytes);
}

static bool try_reserve(struct region *region, struct region_slot *slot, int device, enum charge_kind kind,
                        uint64_t limit_bytes, uint64_t bytes)
{
    /* Asked first, so that a hopeless request does not show in the slot while others correct by it. */
    if (!fits(region, device, limit_bytes, bytes))
        return false;
    add_to_slot(slot, device, kind, bytes);
    if (ledger_reserve(ledger_of(region, device), limit_bytes, bytes))
        return true;
    take_from_slot(slot, device, kind, bytes);
    return false;
}

bool region_reserve(int device, enum charge_kind kind, uint64_t bytes)
{
    if (device < 0 || bytes > LEDGER_MOST_BYTES || !region_join())
        return false;
    struct region *region = atomic_load(&mapped);
    struct region_slot *slot = atomic_load(&mine);
    uint64_t limit_bytes = region_limit_bytes(device);
    if (limit_bytes && bytes > limit_bytes)
        return false;
    if (try_reserve(region, slot, device, kind, limit_bytes, bytes))
        return true;
    sweep_and_correct(region); /* the dead may hold what we need */
    return try_reserve(region, slot, device, kind, limit_bytes, bytes);
}

void region_take(int device, enum charge_kind kind, uint64_t bytes)
{
    if (device < 0 || bytes > LEDGER_MOST_BYTES || !region_join())
        return;
    add_to_slot(atomic_load(&mine), device, kind, bytes);
    ledger_reserve(ledger_of(atomic_load(&mapped), device), 0, bytes);
}

void region_release(int device, enum charge_kind kind, uint64_t bytes)
{
    struct region *region = atomic_load(&mapped);
    struct region_slot *slot = atomic_load(&mine);
    if (!region || !slot || device < 0)
        return;
    ledger_release(ledger_of(region, device), bytes);
    take_from_slot(slot, device, kind, bytes);
}
