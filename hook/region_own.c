/* What of the usage region is this process's own: its slot, what it claims of each device, and what
 * it reads and tells of it. */
#include "counters.h"
#include "limits.h"
#include "loose.h"
#include "region.h"
#include "region_file.h"
#include "region_slots.h"

#include <string.h>

_Atomic(struct region_slot *) region_mine; /* NULL: not joined */
struct brief region_own_lock;
_Atomic uint64_t region_own_calls[1 + MAX_DEVICES];

void region_own_forget(void)
{
    loose_store(&brief_pid, 0);
    brief_let_go(&region_own_lock);
    memset(region_own_calls, 0, sizeof region_own_calls);
}

void region_add_calls(int place, uint64_t calls)
{
    brief_hold(&region_own_lock);
    uint64_t before = loose_load(&region_own_calls[1 + place]);
    atomic_store_explicit(&region_own_calls[1 + place], before + calls, memory_order_release);
    brief_let_go(&region_own_lock);
}

uint64_t region_calls(int place)
{
    return atomic_load(&region_own_calls[1 + place]);
}

struct region_device *region_device_at(int place)
{
    struct region *region = region_mapped();
    return region && place >= 0 && place < MAX_DEVICES ? &region_tail(region)->devices[place] : NULL;
}

uint64_t region_own_bytes(int place)
{
    struct region_slot *slot = region_own_slot();
    return slot && place >= 0 ? loose_load(&slot->used[place].total_bytes) : 0;
}

int32_t region_host_pid(void)
{
    struct region_slot *slot = region_own_slot();
    return slot ? loose_load(&slot->host_pid) : 0;
}

uint64_t region_context_bytes(int place)
{
    struct region_device *device = region_device_at(place);
    return device ? loose_load(&device->context_bytes) : 0;
}

bool region_exchange_context_bytes(int place, uint64_t from, uint64_t bytes)
{
    struct region_device *device = region_device_at(place);
    return device && atomic_compare_exchange_strong(&device->context_bytes, &from, bytes);
}

void region_set_context_bytes(int place, uint64_t bytes)
{
    struct region_device *device = region_device_at(place);
    if (device)
        loose_store(&device->context_bytes, bytes);
}

/* --- bytes ---------------------------------------------------------------------------------------------- */

static _Atomic uint64_t *part(struct region_usage *usage, enum charge_kind kind)
{
    return kind == CHARGE_CONTEXT ? &usage->context_bytes
        : kind == CHARGE_MODULE   ? &usage->module_bytes
                                  : &usage->data_bytes;
}

static void note_peak(_Atomic uint64_t *peak_bytes, uint64_t used)
{
    uint64_t peak = atomic_load_explicit(peak_bytes, memory_order_relaxed);
    while (used > peak && !atomic_compare_exchange_weak(peak_bytes, &peak, used)) { }
}

static bool fits(struct region_device *device, uint64_t limit_bytes, uint64_t bytes)
{
    uint64_t used = ledger_used(&device->ledger);
    return !limit_bytes || (bytes <= limit_bytes && used <= limit_bytes - bytes);
}

/* With region_own_lock held, so that no other thread writes. Who reads without it sees the changes one after
 * another. */
static void add(_Atomic uint64_t *word, uint64_t value)
{
    atomic_store_explicit(word, loose_load(word) + value, memory_order_release);
}

static bool try_reserve(struct region_slot *slot, int place, enum charge_kind kind, uint64_t limit_bytes,
                        uint64_t bytes, uint64_t calls)
{
    struct region_device *device = region_device_at(place);
    struct region_usage *usage = &slot->used[place];
    uint64_t used;
    /* Asked first, so that a hopeless request does not show in the slot while others correct by it. */
    if (!fits(device, limit_bytes, bytes))
        return false;
    brief_hold(&region_own_lock);
    add(&region_own_calls[1 + place], calls);
    add(&usage->total_bytes, bytes);
    bool reserved = ledger_reserve(&device->ledger, limit_bytes, bytes, &used);
    if (reserved) {
        add(part(usage, kind), bytes);
        note_peak(&device->peak_bytes, used);
        note_peak(&usage->peak_bytes, usage_parts(usage));
    } else {
        add(&usage->total_bytes, -bytes);
        add(&region_own_calls[1 + place], -(calls & UINT32_MAX));
    }
    brief_let_go(&region_own_lock);
    return reserved;
}

/* Our slot if so many bytes may be claimed in it, and it is as this process left it: one that somebody wrote
 * over, took away or gave to another gives no second budget. HAMi-core writes no owner. */
static struct region_slot *slot_for(int place, uint64_t bytes)
{
    struct region_slot *slot = region_own_slot();
    if (place < 0 || bytes > LEDGER_MOST_AT_ONCE)
        return NULL;
    if (!slot && region_join())
        slot = region_own_slot();
    return slot && loose_load(&slot->pid) == loose_load(&brief_pid) && slot_is_mine(slot) ? slot : NULL;
}

/* Of a device that has no place. */
__attribute__((noinline)) static bool reserve_uncounted(uint64_t calls)
{
    char listed[UUID_BYTES];
    if (settings()->smallest_limit_bytes || limits_uuid(0, listed))
        return false;
    region_add_calls(-1, calls);
    return true;
}

bool region_reserve(int place, enum charge_kind kind, uint64_t bytes, uint64_t calls)
{
    if (place < 0)
        return reserve_uncounted(calls);
    /* Malformed settings come here where CUDA was started past our cuInit. */
    struct region_slot *slot = settings()->malformed ? NULL : slot_for(place, bytes);
    return slot && try_reserve(slot, place, kind, limits_memory_bytes(place), bytes, calls);
}

void region_take(int place, enum charge_kind kind, uint64_t bytes)
{
    struct region_slot *slot = slot_for(place, bytes);
    if (slot)
        try_reserve(slot, place, kind, 0, bytes, 0);
}

/* Called with the lock held. */
static void release(struct region_device *device, struct region_usage *usage, enum charge_kind kind,
                    uint64_t bytes)
{
    uint64_t held = loose_load(part(usage, kind)),
             gone = bytes < held ? bytes : held; /* never below nothing */
    add(part(usage, kind), -gone);
    if (ledger_release(&device->ledger, gone) < bytes)
        count_more(&device->underflows, 1);
    add(&usage->total_bytes, -gone);
}

void region_release(int place, enum charge_kind kind, uint64_t bytes, uint64_t calls)
{
    struct region_device *device = region_device_at(place);
    struct region_slot *slot = region_own_slot();
    brief_hold(&region_own_lock);
    if (device && slot && slot_is_mine(slot)) /* or it left the sum with the slot, which is another's */
        release(device, &slot->used[place], kind, bytes);
    add(&region_own_calls[1 + place], calls);
    brief_let_go(&region_own_lock);
}
