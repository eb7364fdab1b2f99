#include "reclaim.h"
#include "depth.h"
#include "graph_launches.h"
#include "guesses.h"
#include "limits.h"
#include "looks.h"
#include "pools.h"
#include "real.h"
#include "region.h"

struct quiet quiet_begin(void)
{
    const struct real_cuda *real = real_cuda();
    struct quiet quiet = {.mode = CAPTURE_MODE_RELAXED};
    depth_enter();
    quiet.changed = real && real->cuThreadExchangeStreamCaptureMode
        && real->cuThreadExchangeStreamCaptureMode(&quiet.mode) == CUDA_SUCCESS;
    return quiet;
}

void quiet_end(struct quiet quiet)
{
    if (quiet.changed)
        real_cuda()->cuThreadExchangeStreamCaptureMode(&quiet.mode);
    depth_leave();
}

void true_up(int place)
{
    pools_true_up(place);
    graph_memory_true_up_place(place);
    guesses_reconcile(place, false);
}

bool reclaimable(int place, uint64_t bytes)
{
    if (place < 0)
        return false;
    uint64_t idle = pools_idle_bytes(place) + graph_memory_idle_bytes(place) + guesses_unseen_bytes(place),
             limit = limits_memory_bytes(place), used = region_used_bytes(place);
    used -= idle < used ? idle : used;
    return idle && (bytes <= limit && used <= limit - bytes);
}

void reclaim(int place)
{
    struct quiet quiet = quiet_begin();
    pools_trim(place);
    graph_memory_trim(place);
    quiet_end(quiet);
    if (guesses_unseen_bytes(place))
        guesses_reconcile(place, true);
}

CUresult charge_reclaiming(int place, enum charge_kind kind, uint64_t bytes, const char *function)
{
    guesses_reconcile(place, guesses_may_round(place, bytes));
    /* Not refused yet: nobody is to read that it was. */
    CUresult result = charge(place, kind, bytes, CALL_BEGINS, NULL);
    if (result == CUDA_SUCCESS)
        return result;
    if (!reclaimable(place, bytes))
        return charge_refused(place, bytes, function);
    reclaim(place);
    return charge(place, kind, bytes, CALL_BEGINS, function);
}
