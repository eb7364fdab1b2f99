#include "charge.h"
#include "region.h"

bool charging(void)
{
    return charging_inline();
}

bool charging_bytes(uint64_t bytes)
{
    const uint64_t addresses = UINT64_C(1) << 57; /* of the widest GPUs and processors */
    return bytes > 0 && bytes < addresses && charging();
}

CUresult charge(int place, enum charge_kind kind, uint64_t bytes, const char *function)
{
    if (bytes == 0 || (place >= 0 && region_reserve(place, kind, bytes)))
        return CUDA_SUCCESS;
    if (function)
        region_note_refusal(place, bytes, function);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

void charge_anyway(int place, enum charge_kind kind, uint64_t bytes)
{
    if (place >= 0 && bytes)
        region_take(place, kind, bytes);
}

void charge_back(int place, enum charge_kind kind, uint64_t bytes)
{
    if (place >= 0 && bytes)
        region_release(place, kind, bytes);
}
