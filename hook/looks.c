#include "looks.h"
#include "devices.h"
#include "pools.h"

#include <stdatomic.h>
#include <string.h>

/* How many calls are under way, how many of them measured, and how many began ever: a thread is in one at a
 * time, and no process has so many of them. */
#define CALL UINT64_C(1)
#define CALL_MEASURED (UINT64_C(1) << 20)
#define CALL_BEGINS (UINT64_C(1) << 32)
#define CALLS_UNDER_WAY (CALL_MEASURED - 1)
#define CALLS_MEASURED (CALL_BEGINS - CALL_MEASURED)

enum { LOOKS = 3 };

static _Atomic uint64_t
    calls_at[1 + MAX_DEVICES]; /* that change what the driver holds; first those of no place */
/* Live managed memory: charged in full, while NVML counts those of its pages that are on the GPU. */
static _Atomic uint64_t managed_bytes[MAX_DEVICES];

static uint64_t most(uint64_t one, uint64_t other)
{
    return one > other ? one : other;
}

void looks_call_begins(int place)
{
    atomic_fetch_add(&calls_at[1 + place], CALL_BEGINS + CALL);
}

void looks_call_ended(int place)
{
    atomic_fetch_sub(&calls_at[1 + place], CALL);
}

void looks_calls(bool begin)
{
    for (int i = 0; i < MAX_DEVICES; i++)
        atomic_fetch_add(&calls_at[1 + i], begin ? CALL_BEGINS + CALL : -CALL);
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
    _Atomic uint64_t *calls = &calls_at[1 + place];
    bool quiet = false;
    for (int looks = 0; looks < LOOKS && !quiet; looks++) {
        seen->calls = atomic_load(calls);
        seen->elsewhere_bytes = elsewhere(place);
        figures_now(place, &seen->now, before);
        quiet = (seen->calls & CALLS_UNDER_WAY) == (inside ? CALL : 0) && seen->calls == atomic_load(calls);
        int64_t found = uncharged(&seen->now);
        if (!looks || quiet || (found < seen->uncharged) == least_of_all)
            seen->uncharged = found;
    }
    return quiet;
}

void looks_managed(int place, int64_t bytes)
{
    if (place >= 0)
        atomic_fetch_add(&managed_bytes[place], (uint64_t)bytes);
}

uint64_t looks_managed_bytes(int place)
{
    return atomic_load(&managed_bytes[place]);
}

uint64_t looks_measured_begins(int place)
{
    return atomic_fetch_add(&calls_at[1 + place], CALL_MEASURED) + CALL_MEASURED;
}

void looks_measured_ended(int place)
{
    atomic_fetch_sub(&calls_at[1 + place], CALL + CALL_MEASURED);
}

bool looks_one_measures(const struct look *seen)
{
    return (seen->calls & CALLS_MEASURED) == CALL_MEASURED;
}

bool looks_unchanged(const struct look *seen, int place)
{
    return seen->calls == atomic_load(&calls_at[1 + place]);
}

void looks_corrected(int place)
{
    atomic_fetch_add(&calls_at[1 + place], CALL_BEGINS);
}

void looks_forget(void)
{
    memset(calls_at, 0, sizeof calls_at);
    memset(managed_bytes, 0, sizeof managed_bytes);
}
