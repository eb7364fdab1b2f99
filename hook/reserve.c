#include "reserve.h"

#define MOST_STEP_BYTES (UINT64_C(32) << 20)
#define LEAST_STEP_BYTES (UINT64_C(2) << 20)
#define CLAIMS                                                                                               \
    UINT64_C(0xffffffff) /* which changes are counted there; above, how often the charge was lowered */

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
    reserve->live_bytes = reserve->charged_bytes = reserve->pending_bytes = reserve->seen_bytes = 0;
    pthread_mutex_unlock(&reserve->lock);
}

static uint64_t stepped(const struct reserve *reserve, uint64_t bytes)
{
    uint64_t over = bytes % reserve->step_bytes;
    return over && bytes <= UINT64_MAX - reserve->step_bytes ? bytes - over + reserve->step_bytes : bytes;
}

/* Called with the lock held: of what is reserved, what a stream cannot have. */
static uint64_t taken(const struct reserve *reserve, uint64_t stream)
{
    uint64_t bytes = reserve->live_bytes;
    if (reserve->pending_in == stream || !reserve->pending_bytes)
        return bytes;
    bytes += reserve->pending_bytes;
    return bytes < reserve->charged_bytes ? bytes : reserve->charged_bytes;
}

/* Charge so that `live` bytes more are live, or `least` are charged; false when that does not fit. With the
 * lock held, or two that need the same step would both claim it. */
static bool grow(struct reserve *reserve, uint64_t stream, uint64_t live, uint64_t least)
{
    pthread_mutex_lock(&reserve->lock);
    uint64_t wanted = taken(reserve, stream) + live;
    uint64_t steps = stepped(reserve, least > wanted ? least : wanted);
    uint64_t missing = steps > reserve->charged_bytes ? steps - reserve->charged_bytes : 0;
    bool fits = charge_at_once(reserve->place, CHARGE_DATA, missing, 0);
    if (fits) {
        reserve->live_bytes += live;
        reserve->charged_bytes += missing;
        reserve->claims += stream != NO_STREAM_NUMBER; /* who requires holds it */
        reserve->changes++;
    }
    pthread_mutex_unlock(&reserve->lock);
    return fits;
}

static CUresult claim(struct reserve *reserve, uint64_t stream, uint64_t live, uint64_t least,
                      const char *function)
{
    if (grow(reserve, stream, live, least))
        return CUDA_SUCCESS;
    charge_from_the_dead();
    if (grow(reserve, stream, live, least))
        return CUDA_SUCCESS;
    return charge_refused(reserve->place, live ? live : least, function);
}

CUresult reserve_claim(struct reserve *reserve, uint64_t stream, uint64_t bytes, const char *function)
{
    return claim(reserve, stream, bytes, 0, function);
}

void reserve_hold(struct reserve *reserve)
{
    pthread_mutex_lock(&reserve->lock);
    reserve->claims++;
    reserve->changes++;
    pthread_mutex_unlock(&reserve->lock);
}

CUresult reserve_require(struct reserve *reserve, uint64_t bytes, const char *function)
{
    return claim(reserve, NO_STREAM_NUMBER, 0, bytes, function);
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

void reserve_freed(struct reserve *reserve, uint64_t stream, uint64_t bytes)
{
    pthread_mutex_lock(&reserve->lock);
    reserve->live_bytes -= bytes;
    reserve->freed_bytes += bytes;
    if (stream) {
        reserve->pending_in =
            reserve->pending_bytes && reserve->pending_in != stream ? SEVERAL_STREAMS : stream;
        reserve->pending_bytes += bytes;
    }
    pthread_mutex_unlock(&reserve->lock);
}

void reserve_stream_ends(struct reserve *reserve, uint64_t stream)
{
    pthread_mutex_lock(&reserve->lock);
    if (reserve->pending_in == stream || stream == SEVERAL_STREAMS)
        reserve->pending_in = SEVERAL_STREAMS;
    pthread_mutex_unlock(&reserve->lock);
}

uint64_t reserve_freed_ever(struct reserve *reserve)
{
    pthread_mutex_lock(&reserve->lock);
    uint64_t bytes = reserve->freed_bytes;
    pthread_mutex_unlock(&reserve->lock);
    return bytes;
}

void reserve_awaited(struct reserve *reserve, uint64_t freed_ever)
{
    pthread_mutex_lock(&reserve->lock);
    uint64_t since = reserve->freed_bytes - freed_ever;
    reserve->pending_bytes = reserve->pending_bytes < since ? reserve->pending_bytes : since;
    pthread_mutex_unlock(&reserve->lock);
}

bool reserve_pending(struct reserve *reserve)
{
    pthread_mutex_lock(&reserve->lock);
    bool pending = reserve->pending_bytes;
    pthread_mutex_unlock(&reserve->lock);
    return pending;
}

uint64_t reserve_changes(struct reserve *reserve)
{
    pthread_mutex_lock(&reserve->lock);
    uint64_t changes = reserve->changes;
    pthread_mutex_unlock(&reserve->lock);
    return changes;
}

/* One that has grown by no multiple of the step, nor to one, shows that the driver's steps are smaller. What
 * it was lowered to shows nothing: a threshold is any number of bytes. `current`: nobody grows it meanwhile.
 */
static void learn(struct reserve *reserve, uint64_t reserved_bytes, bool current)
{
    uint64_t grown = reserved_bytes > reserve->seen_bytes ? reserved_bytes - reserve->seen_bytes : 0;
    while (current && reserve->step_bytes > LEAST_STEP_BYTES && reserved_bytes % reserve->step_bytes
           && grown % reserve->step_bytes)
        reserve->step_bytes /= 2;
    if (current || grown)
        reserve->seen_bytes = reserved_bytes;
}

/* Charge what is there and was not charged; false, and `*missing` bytes, when that does not fit. */
static bool catch_up(struct reserve *reserve, uint64_t held, uint64_t *missing)
{
    *missing = held > reserve->charged_bytes ? held - reserve->charged_bytes : 0;
    bool fits = charge_at_once(reserve->place, CHARGE_DATA, *missing, 0);
    reserve->charged_bytes += fits ? *missing : 0;
    return fits;
}

enum settled reserve_settle(struct reserve *reserve, uint64_t changes, uint64_t reserved_bytes, bool anyway)
{
    pthread_mutex_lock(&reserve->lock);
    int place = reserve->place;
    bool current = !reserve->claims && !((reserve->changes ^ changes) & CLAIMS);
    /* What is live is within what the driver has reserved, but for claims that are paid for apart. */
    uint64_t live = reserve->live_bytes, held = reserved_bytes ? reserved_bytes : live;
    uint64_t missing, spare = 0;
    if (held > reserve->charged_bytes && (reserve->changes ^ changes) & ~CLAIMS) {
        pthread_mutex_unlock(&reserve->lock);
        return ASK_AGAIN;
    }
    learn(reserve, reserved_bytes, current);
    if (held < reserve->charged_bytes && current) {
        spare = reserve->charged_bytes - held;
        reserve->charged_bytes = held;
        reserve->changes += CLAIMS + 1;
    }
    uint64_t idle = held > live ? held - live : 0;
    if (current && reserve->pending_bytes > idle) /* as by what the stream itself has taken again */
        reserve->pending_bytes = idle;
    bool fits = catch_up(reserve, held, &missing);
    if (!fits && anyway) {
        charge_anyway(place, CHARGE_DATA, missing);
        reserve->charged_bytes += missing;
    }
    pthread_mutex_unlock(&reserve->lock);
    charge_back(place, CHARGE_DATA, spare, 0);
    if (fits || anyway)
        return SETTLED;
    charge_from_the_dead();
    pthread_mutex_lock(&reserve->lock);
    fits = catch_up(reserve, held, &missing);
    pthread_mutex_unlock(&reserve->lock);
    return fits ? SETTLED : TOO_MUCH;
}

bool reserve_unused(struct reserve *reserve)
{
    pthread_mutex_lock(&reserve->lock);
    bool unused = reserve->claims == 0 && reserve->live_bytes == 0 && reserve->charged_bytes == 0;
    pthread_mutex_unlock(&reserve->lock);
    return unused;
}

uint64_t reserve_seen_bytes(struct reserve *reserve)
{
    pthread_mutex_lock(&reserve->lock);
    uint64_t seen = reserve->seen_bytes;
    pthread_mutex_unlock(&reserve->lock);
    return seen;
}

uint64_t reserve_idle_bytes(struct reserve *reserve)
{
    pthread_mutex_lock(&reserve->lock);
    uint64_t charged = reserve->charged_bytes, live = reserve->live_bytes;
    pthread_mutex_unlock(&reserve->lock);
    return charged > live ? charged - live : 0;
}
