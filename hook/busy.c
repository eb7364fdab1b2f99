#include "busy.h"
#include "monotonic.h"

#include <stdbool.h>

#define WINDOW_LEAST_NS UINT64_C(1000000000)
#define WINDOW_MOST_NS (60 * WINDOW_LEAST_NS)
enum { OLDER, NEWER, NOTES };

static void note(struct region_device *device, uint64_t now_ns)
{
    uint64_t newer_ns = atomic_load(&device->seen_at_ns[NEWER]);
    uint64_t charged_ns = atomic_load(&device->seen_charged_ns[NEWER]);
    if (now_ns - newer_ns < WINDOW_LEAST_NS
        || !atomic_compare_exchange_strong(&device->seen_at_ns[NEWER], &newer_ns, now_ns))
        return;
    atomic_store(&device->seen_charged_ns[NEWER], atomic_load(&device->charged_ns));
    atomic_store(&device->seen_charged_ns[OLDER], charged_ns);
    atomic_store(&device->seen_at_ns[OLDER], newer_ns);
}

void busy_note(struct region_device *device)
{
    note(device, monotonic_ns());
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
        uint64_t charged_ns = atomic_load(&device->charged_ns);
        *window_ns = window > WINDOW_LEAST_NS ? window : WINDOW_LEAST_NS;
        return charged_ns > before_ns ? charged_ns - before_ns : 0;
    }
    *window_ns = WINDOW_LEAST_NS;
    return 0;
}
