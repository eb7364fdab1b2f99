/* A device's own context that one thread releases for the last time while
 * another retains it: the driver is asked whether it is still active, and says
 * so because of the other. Prints whether what was there before has ended, or
 * may have: alone, held by others, made anew; retained again before we know
 * that it was released; and held twice.
 */
#include "contexts.c"
#include "table.c"

#include <stdio.h>

static bool is_active, retain_meanwhile;

static CUresult state_of(CUdevice device, unsigned *flags, int *active)
{
    *flags = 0;
    if (retain_meanwhile && !primary_retaining(device))
        return CUDA_ERROR_NOT_INITIALIZED;
    *active = is_active;
    return CUDA_SUCCESS;
}

static struct real_cuda driver = {.cuDevicePrimaryCtxGetState = state_of};
_Atomic(const void *) real_known[DRIVERS] = {&driver, &driver};

const void *real_search(enum driver which, bool load)
{
    (void)which;
    return load ? &driver : NULL;
}

int place_of_device(CUdevice device)
{
    return device;
}

void charge_back(int place, enum charge_kind kind, uint64_t bytes)
{
    (void)place, (void)kind, (void)bytes;
}

void wrap_context_ended(const void *context)
{
    (void)context;
}

/* Whether it is known to have ended. */
static bool released(bool active, bool meanwhile)
{
    CUcontext context = (CUcontext)(void *)&driver;
    is_active = active;
    retain_meanwhile = meanwhile;
    bool first = primary_retaining(0);
    primary_retained(0, context, first, CUDA_SUCCESS, 0);
    bool ended = first && primary_released(0, true, false);
    primary_released(0, true, true);
    return ended;
}

/* The same of one that is retained again while the driver is told to release it; or was before. */
static bool crossed(bool before)
{
    CUcontext context = (CUcontext)(void *)&driver;
    bool last, first = primary_retaining(0);
    primary_retained(0, context, first, CUDA_SUCCESS, 0);
    if (before)
        primary_retained(0, context, primary_retaining(0), CUDA_SUCCESS, 0);
    primary_releasing(0, &last);
    if (!before)
        primary_retained(0, context, primary_retaining(0), CUDA_SUCCESS, 0);
    bool ended = primary_released(0, last, false);
    primary_released(0, true, true);
    return ended;
}

int main(void)
{
    printf("%d %d %d ", released(false, false), released(true, false), released(true, true));
    printf("%d %d\n", crossed(false), crossed(true));
    return 0;
}
