#include "region_content.h"
#include "limits.h"
#include "loose.h"
#include "settings.h"

#include <string.h>
#include <time.h>

enum { HEADER_MISSING = 0 };

const char *region_complaint(struct region_beginning beginning)
{
    return beginning.magic == HEADER_MISSING ? NULL
        : beginning.magic != REGION_MAGIC    ? "it is not a usage region"
        : beginning.major != REGION_MAJOR    ? REGION_OTHER_LAYOUT
                                             : NULL;
}

static void write_devices(struct region *region)
{
    const struct settings *now = settings();
    uint64_t count = 0;
    for (int i = 0; i < MAX_DEVICES; i++)
        loose_store(&region->sm_percent[i], 100);
    for (char uuid[UUID_BYTES]; limits_uuid((int)count, uuid); count++)
        strcpy(region->uuids[count], uuid);
    for (; count < now->uuid_count && !limits_uuid(0, (char[UUID_BYTES]){""}); count++) {
        memcpy(region->uuids[count], now->uuids[count], UUID_BYTES);
        loose_store(&region->limit_bytes[count], now->limit_bytes[count]);
        loose_store(&region->sm_percent[count], (now->core_permille[count] + 9) / 10);
    }
    loose_store(&region->device_count, count);
}

/* A POSIX semaphore that is 1 and shared by processes, as glibc from 2.21 on has it; older ones only see
 * somebody waiting who is not. */
static void unlock(unsigned char *semaphore)
{
    semaphore[0] = 1;
    semaphore[8] = 128;
}

static void write_header(struct region *region)
{
    region->major = REGION_MAJOR;
    region->minor = REGION_MINOR;
    write_devices(region);
    unlock(region->lock);
    unlock(region->start_lock);
    loose_store(&region->utilisation_switch, 1);
    loose_store(&region->recent_kernel, 2);
    loose_store(&region->priority, settings()->priority);
    loose_store(&region->last_kernel_time_s, (uint64_t)time(NULL));
    atomic_store(&region->magic, REGION_MAGIC);
}

/* Our part; what another version of this library left there means nothing to us. */
static void write_tail(struct region *region)
{
    struct region_tail *tail = region_tail(region);
    atomic_store(&tail->magic, 0);
    memset((char *)tail + sizeof tail->magic, 0, TAIL_BYTES - sizeof tail->magic);
    for (int32_t i = 0; i < REGION_SLOTS && i < atomic_load(&region->slot_count); i++)
        atomic_store(&region->slots[i].owner, 0);
    tail->version = TAIL_VERSION;
    atomic_store(&tail->magic, TAIL_MAGIC);
}

static bool tail_is_in_order(struct region *region)
{
    struct region_tail *tail = region_tail(region);
    return atomic_load(&tail->magic) == TAIL_MAGIC && tail->version == TAIL_VERSION;
}

bool region_in_order(struct region *region)
{
    return atomic_load(&region->magic) == REGION_MAGIC && region->major == REGION_MAJOR
        && tail_is_in_order(region) && atomic_load(&region_tail(region)->slots_backed) >= REGION_SLOTS;
}

void region_put_in_order(struct region *region)
{
    if (atomic_load(&region->magic) == HEADER_MISSING)
        write_header(region);
    if (!tail_is_in_order(region))
        write_tail(region);
    atomic_store(&region_tail(region)->slots_backed, REGION_SLOTS);
}
