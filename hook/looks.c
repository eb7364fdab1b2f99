#include "looks.h"
#include "blocks.h"
#include "counters.h"
#include "devices.h"
#include "pools.h"
#include "region.h"

#include <stdatomic.h>
#include <string.h>

#define CALLS_UNDER_WAY (ONE_MEASURED - 1)
#define CALLS_MEASURED (ONE_BEGINS - ONE_MEASURED)

enum { LOOKS = 3 };

/* Live managed memory: charged in full, while NVML counts those of its pages that are on the GPU. */
static _Atomic uint64_t managed_bytes[MAX_DEVICES];

static uint64_t most(uint64_t one, uint64_t other)
{
    return one > other ? one : other;
}

/* Where the same is seen twice nothing began or ended between, though it is read in parts: in each of them
 * those that began only become more. */
static uint64_t calls_of(int place)
{
    atomic_thread_fence(memory_order_acquire); /* what was read before was before that */
    return region_calls(place) + blocks_calls(place);
}

void looks_call_begins(int place)
{
    region_add_calls(place, CALL_BEGINS);
}

void looks_call_ended(int place)
{
    region_add_calls(place, CALL_ENDS);
}

void looks_calls(bool begin)
{
    for (int i = 0; i < MAX_DEVICES; i++)
        region_add_calls(i, begin ? CALL_BEGINS : CALL_ENDS);
}

/* What NVML counts for this process and nobody was charged. Memory is charged before the driver gives it and
 * until after the driver has it back, so what other threads are in the middle of makes this less, not more.
 */
static int64_t uncharged(const struct figures *figures)
{
    return (int64_t)(figures->own - most(figures->held_before, figures->held_after));
}

/* Charged, and maybe not on the GPU: pages that are elsewhere, and what pools and graphs do not use, which
 * the driver takes back when it likes. */
static int64_t elsewhere(int place)
{
    return (int64_t)(atomic_load(&managed_bytes[place]) + pools_idle_bytes(place)
                     + graph_memory_idle_bytes(place));
}

bool look(int place, bool inside, bool least_of_all, struct look *seen, const struct figures *before)
{
    bool quiet = false;
    for (int looks = 0; looks < LOOKS && !quiet; looks++) {
        seen->calls = calls_of(place);
        seen->elsewhere_bytes = elsewhere(place);
        figures_now(place, &seen->now, before);
        quiet = (seen->calls & CALLS_UNDER_WAY) == (inside ? ONE_CALL : 0) && seen->calls == calls_of(place);
        int64_t found = uncharged(&seen->now);
        if (!looks || quiet || (found < seen->uncharged) == least_of_all)
            seen->uncharged = found;
    }
    return quiet;
}

void looks_managed(int place, int64_t bytes)
{
    if (place >= 0)
        count_more(&managed_bytes[place], (uint64_t)bytes);
}

uint64_t looks_managed_bytes(int place)
{
    return atomic_load(&managed_bytes[place]);
}

uint64_t looks_measured_begins(int place)
{
    region_add_calls(place, ONE_MEASURED);
    return calls_of(place);
}

void looks_measured_ended(int place)
{
    region_add_calls(place, CALL_ENDS - ONE_MEASURED);
}

bool looks_one_measures(const struct look *seen)
{
    /* As it is read in parts, what is below may be less than nothing. */
    return ((seen->calls + ONE_MEASURED / 2) & CALLS_MEASURED) == ONE_MEASURED;
}

bool looks_unchanged(const struct look *seen, int place)
{
    return seen->calls == calls_of(place);
}

void looks_corrected(int place)
{
    region_add_calls(place, ONE_BEGINS);
}

void looks_forget(void)
{
    region_own_forget();
    memset(managed_bytes, 0, sizeof managed_bytes);
}
