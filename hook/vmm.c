#include "vmm.h"
#include "devices.h"
#include "looks.h"
#include "loose.h"
#include "real.h"
#include "reclaim.h"
#include "settings.h"
#include "table.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define PAGE_BYTES (UINT64_C(2) << 20) /* no GPU maps in smaller pieces */

enum { ANY_DEVICE = -1, UNCOUNTED = -1 };

struct physical {
    uint64_t bytes;
    int place; /* UNCOUNTED: somebody else's, or not of a device */
    CUdevice device;
    unsigned users; /* handles, mappings, bindings */
};

struct handle {
    struct entry entry;
    struct physical *physical;
    int references; /* the program's, and of calls that use it */
};

struct mapping {
    struct entry entry; /* by address */
    uint64_t bytes;
    struct physical *physical;
    struct mapping *next; /* among those that end together */
};

struct binding {
    struct binding *next;
    struct physical *memory, *multicast;
    uint64_t at, bytes;
    uint64_t number; /* in the order in which they were noted */
};

_Atomic uint64_t physical_bindings;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t fork_once = PTHREAD_ONCE_INIT;
static struct table handles, mappings;
static struct table
    ending; /* mappings that the driver is being asked to end: their memory can still be retained */
static uint64_t mapping_count;
static struct binding *bindings;

static void forget_after_fork(void)
{
    pthread_mutex_init(&lock, NULL);
    memset(&handles, 0, sizeof handles);
    memset(&mappings, 0, sizeof mappings);
    memset(&ending, 0, sizeof ending);
    mapping_count = 0;
    bindings = NULL;
}

static void watch_forks(void)
{
    pthread_atfork(NULL, NULL, forget_after_fork);
}

/* What the last use of some memory leaves to be given back, after the lock is given up. From before the
 * driver is asked until then a call is under way. */
struct ended {
    uint64_t bytes[MAX_DEVICES]; /* by place */
};

static void give_back(const struct ended *ended)
{
    for (int i = 0; i < MAX_DEVICES; i++)
        charge_back(i, CHARGE_DATA, ended->bytes[i], CALL_ENDS);
}

/* Called with the lock held. An object with bindings keeps what is bound alive until it goes itself. */
static void unuse(struct physical *physical, struct ended *ended)
{
    if (--physical->users)
        return;
    for (struct binding **link = &bindings; *link;) {
        struct binding *binding = *link;
        if (binding->multicast != physical) {
            link = &binding->next;
            continue;
        }
        *link = binding->next;
        unuse(binding->memory, ended); /* memory has no bindings: this goes one deep */
        free(binding);
        link = &bindings;
    }
    if (physical->place != UNCOUNTED)
        ended->bytes[physical->place] += physical->bytes;
    free(physical);
}

static struct handle *find_handle(CUmemGenericAllocationHandle handle)
{
    return (struct handle *)table_find(&handles, handle);
}

static struct mapping *find_among(struct table *table, uint64_t address)
{
    struct entry *entry = table_find(table, address);
    if (!entry)
        for (entry = table_next(table, NULL); entry; entry = table_next(table, entry))
            if (address >= entry->key && address - entry->key < ((struct mapping *)entry)->bytes)
                break;
    return (struct mapping *)entry;
}

static struct mapping *find_mapping(uint64_t address)
{
    struct mapping *mapping = find_among(&mappings, address);
    return mapping ? mapping : find_among(&ending, address);
}

/* Called with the lock held. */
static void add_handle(struct physical *physical, CUmemGenericAllocationHandle value)
{
    struct handle *handle = calloc(1, sizeof *handle);
    if (!handle)
        return; /* it stays charged */
    handle->physical = physical;
    handle->references = 1;
    physical->users++;
    table_add(&handles, &handle->entry, value);
}

/* --- handles -------------------------------------------------------------------------------------------- */

CUresult physical_begin(struct physical **physical, uint64_t bytes, const CUmemAllocationProp *properties,
                        const char *function)
{
    *physical = NULL;
    if (!properties || !charging_bytes(bytes))
        return CUDA_SUCCESS;
    if (properties->location.type > MEMORY_LOCATION_DEVICE_DOMAIN)
        return CUDA_ERROR_NOT_SUPPORTED; /* of a release to come: it may be on a device */
    pthread_once(&fork_once, watch_forks);
    CUdevice device = device_at(&properties->location);
    int place = device == ANY_DEVICE ? UNCOUNTED : place_of_device(device);
    struct physical *made = calloc(1, sizeof *made);
    if (!made)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *made = (struct physical){.bytes = bytes, .place = place, .device = device};
    CUresult result =
        device == ANY_DEVICE ? CUDA_SUCCESS : charge_reclaiming(place, CHARGE_DATA, bytes, function);
    if (result == CUDA_SUCCESS)
        *physical = made;
    else
        free(made);
    return result;
}

CUresult physical_made(struct physical *physical, CUresult result, CUmemGenericAllocationHandle handle)
{
    if (!physical)
        return result;
    int place = physical->place;
    if (result != CUDA_SUCCESS) {
        charge_back(place, CHARGE_DATA, physical->bytes, CALL_ENDS);
        free(physical);
        return result;
    }
    pthread_mutex_lock(&lock);
    add_handle(physical, handle);
    pthread_mutex_unlock(&lock);
    looks_call_ended(place);
    return result;
}

void physical_known(CUmemGenericAllocationHandle value, uint64_t address)
{
    if (!charging())
        return;
    pthread_once(&fork_once, watch_forks);
    pthread_mutex_lock(&lock);
    struct handle *handle = find_handle(value);
    struct mapping *mapping = address ? find_mapping(address) : NULL;
    struct physical *physical = mapping ? mapping->physical : handle ? handle->physical : NULL;
    if (!physical && (physical = calloc(1, sizeof *physical)))
        *physical = (struct physical){.place = UNCOUNTED, .device = ANY_DEVICE};
    if (handle && handle->physical == physical) /* or its value is given out anew while it is released */
        handle->references++;
    else if (physical)
        add_handle(physical, value);
    pthread_mutex_unlock(&lock);
}

struct handle *handle_use(CUmemGenericAllocationHandle value)
{
    if (!charging())
        return NULL;
    pthread_mutex_lock(&lock);
    struct handle *handle = find_handle(value);
    if (handle)
        handle->references++;
    pthread_mutex_unlock(&lock);
    if (handle)
        looks_calls(true);
    return handle;
}

void handle_used(struct handle *handle, int references)
{
    struct ended ended = {0};
    if (!handle)
        return;
    pthread_mutex_lock(&lock);
    handle->references -= references;
    if (handle->references <= 0) {
        table_remove(&handles, &handle->entry);
        unuse(handle->physical, &ended);
        free(handle);
    }
    pthread_mutex_unlock(&lock);
    give_back(&ended);
}

/* --- mappings ------------------------------------------------------------------------------------------- */

/* Called with the lock held, as is the next. */
static void add_mapping(struct mapping *mapping, uint64_t address)
{
    table_add(&mappings, &mapping->entry, address);
    mapping_count++;
}

static void take_mapping(struct mapping *mapping, struct mapping **taken)
{
    table_remove(&mappings, &mapping->entry);
    mapping_count--;
    table_add(&ending, &mapping->entry, mapping->entry.key);
    mapping->next = *taken;
    *taken = mapping;
}

void physical_mapped(uint64_t address, uint64_t bytes, struct handle *handle)
{
    struct mapping *mapping = handle ? calloc(1, sizeof *mapping) : NULL;
    if (!handle)
        return;
    pthread_mutex_lock(&lock);
    handle->physical->users++; /* without memory for the mapping, for ever: it stays charged */
    if (mapping) {
        mapping->bytes = bytes;
        mapping->physical = handle->physical;
        add_mapping(mapping, address);
    }
    pthread_mutex_unlock(&lock);
}

struct mapping *mappings_ending(uint64_t address, uint64_t bytes)
{
    struct mapping *taken = NULL;
    if (!charging() || bytes > UINT64_MAX - address)
        return NULL;
    pthread_mutex_lock(&lock);
    /* By address where that is less work; the range may also be absurd, as the driver will say. */
    bool by_address = bytes / PAGE_BYTES <= mapping_count;
    for (uint64_t at = address; by_address && at - address < bytes;) {
        struct mapping *mapping = (struct mapping *)table_find(&mappings, at);
        at += mapping ? mapping->bytes : PAGE_BYTES;
        if (mapping)
            take_mapping(mapping, &taken);
    }
    struct entry *next, *entry = by_address ? NULL : table_next(&mappings, NULL);
    for (; entry; entry = next) {
        next = table_next(&mappings, entry);
        if (entry->key - address < bytes)
            take_mapping((struct mapping *)entry, &taken);
    }
    pthread_mutex_unlock(&lock);
    if (taken)
        looks_calls(true);
    return taken;
}

CUresult mappings_ended(struct mapping *taken, CUresult result)
{
    struct ended ended = {0};
    if (!taken)
        return result;
    pthread_mutex_lock(&lock);
    while (taken) {
        struct mapping *mapping = taken;
        taken = mapping->next;
        table_remove(&ending, &mapping->entry);
        if (result == CUDA_SUCCESS) {
            unuse(mapping->physical, &ended);
            free(mapping);
        } else {
            add_mapping(mapping, mapping->entry.key);
        }
    }
    pthread_mutex_unlock(&lock);
    give_back(&ended);
    return result;
}

/* --- multicast ------------------------------------------------------------------------------------------ */

void physical_bound(struct handle *object, uint64_t at, uint64_t bytes, struct handle *handle,
                    uint64_t address)
{
    struct binding *binding = object ? calloc(1, sizeof *binding) : NULL;
    if (!object)
        return;
    pthread_mutex_lock(&lock);
    struct mapping *mapping = address ? find_mapping(address) : NULL;
    struct physical *memory = handle ? handle->physical : mapping ? mapping->physical : NULL;
    bool counted = memory && memory->place != UNCOUNTED;
    if (counted)
        memory->users++; /* as above */
    if (counted && binding) {
        uint64_t number = loose_load(&physical_bindings) + 1;
        *binding = (struct binding){bindings, memory, object->physical, at, bytes, number};
        bindings = binding;
        loose_store(&physical_bindings, number);
        binding = NULL;
    }
    pthread_mutex_unlock(&lock);
    free(binding);
}

void physical_unbound(uint64_t until, CUmemGenericAllocationHandle multicast, CUdevice device, uint64_t at,
                      uint64_t bytes)
{
    struct ended ended = {0};
    if (!charging())
        return;
    looks_calls(true);
    pthread_mutex_lock(&lock);
    struct handle *object = find_handle(multicast);
    for (struct binding **link = &bindings; object && *link;) {
        struct binding *binding = *link;
        bool its = binding->multicast == object->physical && binding->at >= at && binding->at - at < bytes
            && binding->memory->device == device && binding->number <= until;
        if (!its) {
            link = &binding->next;
            continue;
        }
        *link = binding->next;
        unuse(binding->memory, &ended);
        free(binding);
    }
    pthread_mutex_unlock(&lock);
    give_back(&ended);
}
