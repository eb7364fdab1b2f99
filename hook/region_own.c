/* What of the usage region is this process's own: its slot, and what it reads and tells of each device. */
#include "loose.h"
#include "region.h"
#include "region_file.h"

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
