/* Allocations that were refused, on record for the agent: see struct region_refusal. */
#include "counters.h"
#include "limits.h"
#include "log.h"
#include "region.h"
#include "region_file.h"
#include "region_slots.h"

#include <string.h>
#include <time.h>
#include <unistd.h>

/* Take the record for writing, unless another process is at it. One that died there is passed over until
 * the records have gone round a few times. */
static bool take_record(struct region_refusal *refusal, uint64_t number)
{
    enum { ROUNDS = 4 };
    uint64_t before = atomic_load(&refusal->number);
    if ((before & REFUSAL_WRITING) && number - (before & ~REFUSAL_WRITING) < ROUNDS * REFUSALS)
        return false;
    return atomic_compare_exchange_strong(&refusal->number, &before, number | REFUSAL_WRITING);
}

static void write_word(uint64_t *word, uint64_t value)
{
    __atomic_store_n(word, value, __ATOMIC_RELAXED);
}

static void write_half(int32_t *half, int32_t value)
{
    __atomic_store_n(half, value, __ATOMIC_RELAXED);
}

static void write_name(struct region_refusal *refusal, const char *function)
{
    char name[sizeof refusal->function] = {0};
    memcpy(name, function, strnlen(function, sizeof name - 1));
    for (size_t i = 0; i < sizeof name; i++)
        __atomic_store_n(&refusal->function[i], name[i], __ATOMIC_RELAXED);
}

void region_note_refusal(int place, uint64_t bytes, const char *function)
{
    struct region_device *device = region_device_at(place);
    struct timespec now;
    if (!device)
        return;
    count_more(&device->refusals, 1);
    count_more(&device->refused_bytes, bytes);
    uint64_t used = ledger_used(&device->ledger), limit = limits_memory_bytes(place);
    log_warning("%s: %llu bytes refused, %llu of %llu in use", function, (unsigned long long)bytes,
                (unsigned long long)used, (unsigned long long)limit);
    struct region_slot *own = region_own_slot();
    if (own)
        count_more(&own->utilisation[place].refusals, 1);
    struct region_tail *tail = region_tail(region_mapped());
    uint64_t number = atomic_fetch_add(&tail->refusal_count, 1) + 1;
    struct region_refusal *refusal = &tail->refusals[(number - 1) % REFUSALS];
    if (!take_record(refusal, number))
        return;
    struct holdings all = slots_hold(region_mapped(), place);
    clock_gettime(CLOCK_REALTIME, &now);
    write_word(&refusal->time_ns, (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec);
    write_half(&refusal->pid, (int32_t)getpid());
    write_half(&refusal->device, place);
    write_word(&refusal->asked_bytes, bytes);
    write_word(&refusal->used_bytes, used);
    write_word(&refusal->limit_bytes, limit);
    write_word(&refusal->largest_bytes, all.largest_bytes);
    write_half(&refusal->largest_pid, all.largest_pid);
    write_name(refusal, function);
    uint64_t writing = number | REFUSAL_WRITING;
    atomic_compare_exchange_strong(&refusal->number, &writing, number);
}
