/* A device's own context that one thread releases for the last time while
 * another retains it: the driver is asked whether it is still active, and says
 * so because of the other. Prints whether what was there before has ended, or
 * may have: alone, held by others, made anew; retained again before we know
 * that it was released; and held twice. Then what stays charged when all have
 * released it, and whether what was in the first one has ended before that, of
 * one that was made anew: by a retain that was not the first, at another place;
 * by one that was, at the same place; and not at all. Then what is charged of a
 * context and its code that end, or that the driver refuses to end, beside code
 * of another that was given the same handle before we knew. Then what is
 * charged when another made it anew after the driver was asked; and of one that
 * is reset while another thread retains it, and loads code, when it is retained
 * once more, and at the end. Last, how often
 * one who comes while the first is being made sleeps.
 */
#include "contexts.c"
#include "table.c"

#include <stdio.h>

enum { BYTES = 100 };

static bool is_active, retain_meanwhile, make_meanwhile, asked_before, making;
static int sleeps;
static unsigned long long id = 1;
static long long charged;
static const void *ended;
static const struct cost nothing;

static CUresult id_told(CUcontext context, unsigned long long *told)
{
    (void)context;
    *told = id;
    return CUDA_SUCCESS;
}

static bool make(CUcontext context)
{
    bool first = primary_retaining(0);
    charged += first ? BYTES : 0;
    primary_retained(0, context, first, CUDA_SUCCESS, (struct cost){first ? BYTES : 0, 0});
    return first;
}

static CUresult state_of(CUdevice device, unsigned *flags, int *active)
{
    *flags = 0;
    if (make_meanwhile) {
        make_meanwhile = false;
        id++;
        *active = make((CUcontext)(void *)&id) && !asked_before;
        return CUDA_SUCCESS;
    }
    if (retain_meanwhile && !primary_retaining(device))
        return CUDA_ERROR_NOT_INITIALIZED;
    *active = is_active;
    return CUDA_SUCCESS;
}

static struct real_cuda driver = {.cuDevicePrimaryCtxGetState = state_of, .cuCtxGetId = id_told};
#include "one_driver.h"

int place_of_device(CUdevice device)
{
    return device;
}

CUresult place_of_context(int *place)
{
    *place = 0;
    return CUDA_SUCCESS;
}

void guesses_ended(int place, enum charge_kind kind, struct cost cost)
{
    (void)place, (void)kind;
    charged -= (long long)cost.bytes;
}

void guesses_made(int place, uint64_t bytes)
{
    (void)place, (void)bytes;
}

void looks_calls(bool begin)
{
    (void)begin;
}

/* Meanwhile the first has been made. */
void monotonic_sleep_until(uint64_t ns)
{
    (void)ns;
    sleeps++;
    if (making)
        primary_retained(0, (CUcontext)(void *)&id, true, CUDA_SUCCESS, nothing);
    making = false;
}

struct block *blocks_take_of(const void *context)
{
    ended = context;
    return NULL;
}

void wrap_context_ended(struct block *blocks, bool their_end)
{
    (void)blocks, (void)their_end;
}

/* Nobody retains it, seen or unseen. */
static void release_all(void)
{
    bool last = false;
    is_active = retain_meanwhile = false;
    while (!last) {
        primary_releasing(0, &last);
        primary_released(0, last);
    }
}

/* Whether it is known to have ended. */
static bool released(bool active, bool meanwhile)
{
    CUcontext context = (CUcontext)(void *)&driver;
    is_active = active;
    retain_meanwhile = meanwhile;
    bool first = primary_retaining(0);
    primary_retained(0, context, first, CUDA_SUCCESS, nothing);
    bool ended = first && primary_released(0, true);
    if (meanwhile)
        primary_retained(0, context, true, CUDA_SUCCESS, nothing);
    release_all();
    return ended;
}

/* The same of one that is retained again while the driver is told to release
 * it; or was before. */
static bool crossed(bool before)
{
    CUcontext context = (CUcontext)(void *)&driver;
    bool last, first = primary_retaining(0);
    primary_retained(0, context, first, CUDA_SUCCESS, nothing);
    if (before)
        primary_retained(0, context, primary_retaining(0), CUDA_SUCCESS, nothing);
    primary_releasing(0, &last);
    if (!before)
        primary_retained(0, context, primary_retaining(0), CUDA_SUCCESS, nothing);
    bool ended = primary_released(0, last);
    release_all();
    return ended;
}

static void begin(CUcontext context)
{
    charged = 0;
    is_active = retain_meanwhile = false;
    make(context);
    ended = NULL;
}

static void finish(CUcontext first, const char *end)
{
    bool before = ended == first;
    primary_released(0, true);
    printf("%lld %d%s", charged, before, end);
}

/* Released and made anew, by a thread that asked before we knew that it was
 * released. */
static void made_elsewhere(void)
{
    CUcontext first = (CUcontext)(void *)&charged, second = (CUcontext)(void *)&ended;
    bool last;
    begin(first);
    primary_releasing(0, &last);
    id++;
    make(second);
    primary_released(0, last);
    finish(first, " ");
}

/* The same by one that asked afterwards. */
static void made_there(void)
{
    CUcontext place = (CUcontext)(void *)&id;
    begin(place);
    make_meanwhile = true;
    primary_released(0, true);
    finish(place, " ");
}

/* Released, and the other was refused. */
static void made_nowhere(void)
{
    CUcontext first = (CUcontext)(void *)&charged;
    bool last;
    begin(first);
    primary_releasing(0, &last);
    bool other = primary_retaining(0);
    primary_released(0, last);
    primary_retained(0, NULL, other, CUDA_ERROR_OUT_OF_MEMORY, nothing);
    finish(first, "\n");
}

static void given_anew(CUresult result)
{
    CUcontext context = (CUcontext)(void *)&id;
    const struct cost own = {BYTES, 0}, of_other = {1, 0};
    struct context_end ending;
    charged = 2 * BYTES + 1;
    context_made(context, 0, own, false);
    module_loaded(&driver, context, 0, own);
    context_ending(&ending, context, true);
    module_loaded(&is_active, context, 0, of_other);
    context_ended(&ending, result);
    printf("%lld ", charged);
    context_ending(&ending, context, true);
    context_ended(&ending, CUDA_SUCCESS);
    printf("%lld\n", charged);
}

/* By one that asked afterwards, too, while the driver's answer was under way. */
static void made_since(void)
{
    begin((CUcontext)(void *)&id);
    make_meanwhile = asked_before = true;
    primary_released(0, true);
    printf("%lld ", charged);
    release_all();
}

/* While the driver resets it, another thread retains it, and loads code into what is there then. */
static void reset_beside(void)
{
    CUcontext place = (CUcontext)(void *)&id;
    struct context_end ending;
    begin(place);
    context_ending(&ending, place, true);
    id++;
    make(place);
    module_loaded(&driver, place, 0, (struct cost){BYTES, 0});
    charged += BYTES;
    context_ended(&ending, CUDA_SUCCESS);
    primary_was_reset(0);
    printf("%lld ", charged);
    make(place);
    printf("%lld ", charged);
    release_all();
    printf("%lld ", charged);
}

static void being_made(void)
{
    making = primary_retaining(0);
    bool first = primary_retaining(0);
    printf("%d %d\n", first, sleeps);
}

int main(void)
{
    printf("%d %d %d ", released(false, false), released(true, false), released(true, true));
    printf("%d %d ", crossed(false), crossed(true));
    made_elsewhere();
    made_there();
    made_nowhere();
    given_anew(CUDA_SUCCESS);
    given_anew(CUDA_ERROR_INVALID_CONTEXT);
    made_since();
    reset_beside();
    being_made();
    return 0;
}
