#include "busy.h"
#include "counters.h"
#include "loose.h"
#include "monotonic.h"

#define WINDOW_LEAST_NS UINT64_C(1000000000)
#define WINDOW_MOST_NS (60 * WINDOW_LEAST_NS)
enum { OLDER, NEWER, NOTES };

/* Once, for size. */
__attribute__((noinline)) static void note(struct region_device *device, uint64_t now_ns)
{
    uint64_t newer_ns = loose_load(&device->seen_at_ns[NEWER]);
    uint64_t charged_ns = loose_load(&device->seen_charged_ns[NEWER]);
    if (now_ns - newer_ns < WINDOW_LEAST_NS
        || !atomic_compare_exchange_strong(&device->seen_at_ns[NEWER], &newer_ns, now_ns))
        return;
    atomic_store(&device->seen_charged_ns[NEWER], loose_load(&device->charged_ns));
    atomic_store(&device->seen_charged_ns[OLDER], charged_ns);
    atomic_store(&device->seen_at_ns[OLDER], newer_ns);
}

bool busy_charged(struct busy_shown *shown, int place, int64_t charged_ns)
{
    struct region_slot *own = region_own_slot();
    uint64_t now_ns = monotonic_ns();
    if (!own)
        return false;
    _Atomic uint64_t *percent = &own->utilisation[place].sm_percent;
    if (shown->due_ns <= 0 && !atomic_load_explicit(percent, memory_order_relaxed))
        shown->at_ns = now_ns; /* it was idle */
    if (charged_ns > 0) {
        count_more(&own->used[place].charged_ns, (uint64_t)charged_ns);
        note(region_device_at(place), now_ns);
        shown->due_ns += charged_ns;
        charged_ns = 0;
    }
    int64_t due_ns = shown->due_ns + charged_ns;
    uint64_t window_ns = now_ns - shown->at_ns;
    if (window_ns >= WINDOW_LEAST_NS) {
        int64_t spent_ns = due_ns < (int64_t)window_ns ? due_ns : (int64_t)window_ns;
        spent_ns = spent_ns > 0 ? spent_ns : 0;
        shown->at_ns = now_ns;
        shown->due_ns -= spent_ns;
        due_ns -= spent_ns;
        atomic_store_explicit(percent, 100 * (uint64_t)spent_ns / window_ns, memory_order_relaxed);
    }
    return due_ns > 0 || atomic_load_explicit(percent, memory_order_relaxed);
}

uint64_t busy_ns(struct region_device *device, uint64_t *window_ns)
{
    uint64_t now_ns = monotonic_ns();
    note(device, now_ns);
    for (int i = OLDER; i < NOTES; i++) {
        uint64_t at_ns = atomic_load(&device->seen_at_ns[i]), window = now_ns - at_ns;
        if (!at_ns || window > WINDOW_MOST_NS)
            continue;
        uint64_t before_ns = atomic_load(&device->seen_charged_ns[i]);
        uint64_t charged_ns = loose_load(&device->charged_ns);
        *window_ns = window > WINDOW_LEAST_NS ? window : WINDOW_LEAST_NS;
        return charged_ns > before_ns ? charged_ns - before_ns : 0;
    }
    *window_ns = WINDOW_LEAST_NS;
    return 0;
}
