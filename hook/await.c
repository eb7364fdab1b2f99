#include "await.h"
#include "contexts.h"
#include "launch_gate.h"
#include "monotonic.h"
#include "real.h"
#include "reclaim.h"
#include "threads.h"
#include "throttle.h"

#include <stdatomic.h>
#include <stdlib.h>

#define AWAIT_MOST_NS (10000 * MS_NS)
#define LOOK_FIRST_NS (MS_NS / 20)

struct wait {
    _Atomic(CUcontext) context; /* no green one: the caller may have that current. NULL: the driver is back */
    struct wait *next;
    bool over; /* nothing is left to wait for; told when the driver is back */
};

/* Those that nobody waits for any more. They stay: each took somebody 10 s. */
static struct wait *_Atomic left_alone;

static bool is_left_alone(CUcontext context)
{
    const struct wait *wait = atomic_load(&left_alone);
    while (wait && loose_load(&wait->context) != context)
        wait = wait->next;
    return wait;
}

static void *wait_for_driver(void *of)
{
    struct wait *wait = of;
    struct quiet quiet = quiet_begin();
    /* It would end a capture of any thread, and one may have begun until now. */
    if (real_cuda()->cuCtxSetCurrent(loose_load(&wait->context)) == CUDA_SUCCESS && !launch_gate_captures())
        wait->over = real_cuda()->cuCtxSynchronize() == CUDA_SUCCESS;
    quiet_end(quiet);
    atomic_store(&wait->context, NULL);
    return NULL;
}

bool await_streams(void)
{
    const struct real_cuda *real = real_cuda();
    CUcontext current = NULL;
    struct wait *wait = NULL;
    if (!real || !real->cuCtxSynchronize || !real->cuCtxSetCurrent || !real->cuCtxGetCurrent)
        return false;
    struct quiet quiet = quiet_begin();
    if (real->cuCtxGetCurrent(&current) == CUDA_SUCCESS && current)
        current = context_whole(current);
    if (current && !is_left_alone(current))
        wait = calloc(1, sizeof *wait);
    quiet_end(quiet);
    if (!wait)
        return false;
    loose_store(&wait->context, current);
    if (!thread_start(wait_for_driver, wait)) {
        free(wait);
        return false;
    }
    uint64_t now_ns = monotonic_ns(), until_ns = now_ns + (uint64_t)AWAIT_MOST_NS,
             apart_ns = (uint64_t)LOOK_FIRST_NS;
    while (atomic_load(&wait->context) && now_ns < until_ns) {
        monotonic_sleep_until(now_ns + apart_ns);
        now_ns = monotonic_ns();
        apart_ns = apart_ns < (uint64_t)MS_NS ? 2 * apart_ns : apart_ns;
    }
    if (!atomic_load(&wait->context)) {
        bool over = wait->over;
        free(wait);
        return over;
    }
    wait->next = loose_load(&left_alone);
    while (!atomic_compare_exchange_weak(&left_alone, &wait->next, wait)) { }
    return false;
}

void await_forget(void)
{
    loose_store(&left_alone, NULL);
}
