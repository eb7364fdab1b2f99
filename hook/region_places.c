/* Which place a device has in the usage region, and what the readers of that are told of it. */
#include "limits.h"
#include "loose.h"
#include "region.h"
#include "region_file.h"

#include <string.h>

enum { ADD_PATIENCE_MS = 1000 };

static int find_device(struct region *region, const char *uuid)
{
    for (int i = 0; i < MAX_DEVICES; i++)
        if (region_has_device(region, i) && strncmp(region->uuids[i], uuid, UUID_BYTES) == 0)
            return i;
    return -1;
}

static int add_device(struct region *region, const char *uuid)
{
    for (int i = 0; i < MAX_DEVICES; i++) {
        if (region_has_device(region, i))
            continue;
        loose_store(&region->limit_bytes[i], settings_limit_bytes(uuid, -1));
        loose_store(&region->sm_percent[i], (settings_core_permille(uuid, -1) + 9) / 10);
        memcpy(&region->uuids[i][1], &uuid[1], strlen(uuid));
        __atomic_store_n(&region->uuids[i][0], uuid[0], __ATOMIC_RELEASE);
        atomic_store(&region->device_count, (uint64_t)i + 1);
        return i;
    }
    return -1;
}

int region_device(const char *uuid)
{
    if (!uuid[0] || strlen(uuid) >= UUID_BYTES || !region_open())
        return -1;
    struct region *region = region_mapped();
    int place = find_device(region, uuid);
    if (place < 0) {
        int fd = region_file_lock(ADD_PATIENCE_MS);
        if (fd < 0)
            return -1;
        place = find_device(region, uuid); /* another process may have been faster */
        place = place < 0 ? add_device(region, uuid) : place;
        region_file_unlock(fd);
    }
    limits_place(place, uuid);
    return place;
}

uint64_t region_told_bytes(int place)
{
    struct region *region = region_mapped();
    return region ? atomic_load_explicit(&region->limit_bytes[place], memory_order_relaxed) : 0;
}

uint32_t region_told_permille(int place)
{
    struct region *region = region_mapped();
    uint64_t percent = region ? atomic_load_explicit(&region->sm_percent[place], memory_order_relaxed) : 0;
    return percent > 0 && percent < 100 ? (uint32_t)percent * 10 : WHOLE_GPU_PERMILLE;
}

void region_tell_limits(int place, uint64_t limit_bytes, uint32_t core_permille)
{
    struct region *region = region_mapped();
    if (!region)
        return;
    loose_store(&region->limit_bytes[place], limit_bytes);
    loose_store(&region->sm_percent[place], (core_permille + 9) / 10);
}

bool region_switch_is_on(void)
{
    struct region *region = region_mapped();
    return !region || atomic_load_explicit(&region->utilisation_switch, memory_order_relaxed) != 0;
}
