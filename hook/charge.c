#include "charge.h"
#include "region.h"

bool charging(void)
{
    return charging_inline();
}

bool charging_bytes(uint64_t bytes)
{
    const uint64_t addresses = UINT64_C(1) << 57; /* of the widest GPUs and processors */
    return bytes > 0 && bytes < addresses && charging_inline();
}

bool charge_at_once(int place, enum charge_kind kind, uint64_t bytes, uint64_t calls)
{
    if (bytes)
        return region_reserve(place, kind, bytes, calls);
    if (calls)
        region_add_calls(place, calls);
    return true;
}

void charge_from_the_dead(void)
{
    region_sweep();
}

CUresult charge(int place, enum charge_kind kind, uint64_t bytes, uint64_t calls, const char *function)
{
    if (charge_at_once(place, kind, bytes, calls))
        return CUDA_SUCCESS;
    charge_from_the_dead();
    return charge_at_once(place, kind, bytes, calls) ? CUDA_SUCCESS : charge_refused(place, bytes, function);
}

CUresult charge_refused(int place, uint64_t bytes, const char *function)
{
    if (function)
        region_note_refusal(place, bytes, function);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

/* Seldom, and so small. */
__attribute__((minsize)) void charge_anyway(int place, enum charge_kind kind, uint64_t bytes)
{
    if (place >= 0 && bytes)
        region_take(place, kind, bytes);
}

void charge_back(int place, enum charge_kind kind, uint64_t bytes, uint64_t calls)
{
    if (place >= 0 && bytes)
        region_release(place, kind, bytes, calls);
    else if (calls)
        region_add_calls(place, calls);
}
