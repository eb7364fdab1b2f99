#include "reserve.h"

#define MOST_STEP_BYTES (UINT64_C(32) << 20)
#define LEAST_STEP_BYTES (UINT64_C(2) << 20)

void reserve_init(struct reserve *reserve, int place)
{
    *reserve = (struct reserve){.place = place, .step_bytes = MOST_STEP_BYTES};
    pthread_mutex_init(&reserve->lock, NULL);
}

void reserve_reset(struct reserve *reserve, int place)
{
    pthread_mutex_lock(&reserve->lock);
    reserve->place = place;
    reserve->step_bytes = MOST_STEP_BYTES;
    reserve->live_bytes = reserve->charged_bytes = 0;
    pthread_mutex_unlock(&reserve->lock);
}

static uint64_t stepped(const struct reserve *reserve, uint64_t bytes)
{
    uint64_t over = bytes % reserve->step_bytes;
    return over && bytes <= UINT64_MAX - reserve->step_bytes ? bytes - over + reserve->step_bytes : bytes;
}

/* Charge so that `live` bytes more are live, or `least` are charged. What another thread has claimed and was
 * not granted yet does not count, for it may be refused: two that claim the same step at once charge it twice
 * for a moment, never too little. */
static CUresult claim(struct reserve *reserve, uint64_t live, uint64_t least, const char *function)
{
    pthread_mutex_lock(&reserve->lock);
    uint64_t charged = reserve->charged_bytes, wanted = reserve->live_bytes += live;
    if (least > wanted)
        wanted = least;
    uint64_t steps = stepped(reserve, wanted), growth = steps > charged ? steps - charged : 0;
    reserve->claims++;
    reserve->changes++;
    pthread_mutex_unlock(&reserve->lock);
    CUresult result = charge(reserve->place, CHARGE_DATA, growth, function);
    pthread_mutex_lock(&reserve->lock);
    if (result == CUDA_SUCCESS) {
        reserve->charged_bytes += growth;
    } else {
        reserve->live_bytes -= live;
        reserve->claims--;
    }
    pthread_mutex_unlock(&reserve->lock);
    return result;
}

CUresult reserve_claim(struct reserve *reserve, uint64_t bytes, const char *function)
{
    return claim(reserve, bytes, 0, function);
}

CUresult reserve_require(struct reserve *reserve, uint64_t bytes, const char *function)
{
    return claim(reserve, 0, bytes, function);
}

void reserve_claimed(struct reserve *reserve, uint64_t bytes, bool kept)
{
    pthread_mutex_lock(&reserve->lock);
    if (!kept)
        reserve->live_bytes -= bytes;
    reserve->claims--;
    reserve->changes++;
    pthread_mutex_unlock(&reserve->lock);
}

void reserve_freed(struct reserve *reserve, uint64_t bytes)
{
    pthread_mutex_lock(&reserve->lock);
    reserve->live_bytes -= bytes;
    pthread_mutex_unlock(&reserve->lock);
}

uint64_t reserve_changes(struct reserve *reserve)
{
    pthread_mutex_lock(&reserve->lock);
    uint64_t changes = reserve->changes;
    pthread_mutex_unlock(&reserve->lock);
    return changes;
}

/* A reserve that is no multiple of the step shows that the driver's steps are smaller. */
static void learn(struct reserve *reserve, uint64_t reserved_bytes)
{
    while (reserve->step_bytes > LEAST_STEP_BYTES && reserved_bytes % reserve->step_bytes)
        reserve->step_bytes /= 2;
}

bool reserve_settle(struct reserve *reserve, uint64_t changes, uint64_t reserved_bytes, bool anyway,
                    const char *function)
{
    pthread_mutex_lock(&reserve->lock);
    int place = reserve->place;
    learn(reserve, reserved_bytes);
    /* What is live is within what the driver has reserved, but for claims that are paid for apart. */
    uint64_t held = reserved_bytes ? reserved_bytes : reserve->live_bytes;
    uint64_t charged = reserve->charged_bytes, missing = held > charged ? held - charged : 0, spare = 0;
    if (held < charged && !reserve->claims && reserve->changes == changes) {
        spare = charged - held;
        reserve->charged_bytes = held;
    }
    if (anyway)
        reserve->charged_bytes += missing;
    pthread_mutex_unlock(&reserve->lock);
    charge_back(place, CHARGE_DATA, spare);
    if (anyway)
        charge_anyway(place, CHARGE_DATA, missing);
    if (anyway || !missing)
        return true;
    if (charge(place, CHARGE_DATA, missing, function) != CUDA_SUCCESS)
        return false;
    pthread_mutex_lock(&reserve->lock);
    reserve->charged_bytes += missing;
    pthread_mutex_unlock(&reserve->lock);
    return true;
}

bool reserve_unused(struct reserve *reserve)
{
    pthread_mutex_lock(&reserve->lock);
    bool unused = reserve->claims == 0 && reserve->live_bytes == 0 && reserve->charged_bytes == 0;
    pthread_mutex_unlock(&reserve->lock);
    return unused;
}

uint64_t reserve_idle_bytes(struct reserve *reserve)
{
    pthread_mutex_lock(&reserve->lock);
    uint64_t charged = reserve->charged_bytes, live = reserve->live_bytes;
    pthread_mutex_unlock(&reserve->lock);
    return charged > live ? charged - live : 0;
}
