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
    _Atomic bool alone; /* nobody waits for it */
    bool listed;
    struct wait *next;
};

/* Those that nobody waited for any more while the driver did. They stay, for others to use. */
static struct wait *_Atomic left_alone;

static bool is_left_alone(CUcontext context)
{
    const struct wait *wait = atomic_load(&left_alone);
    while (wait && !(atomic_load(&wait->alone) && loose_load(&wait->context) == context))
        wait = wait->next;
    return wait;
}

/* One for the caller, with its context: of those whose driver is back, or a new one. */
static struct wait *new_wait(CUcontext context)
{
    struct wait *wait = atomic_load(&left_alone);
    CUcontext none = NULL;
    while (wait && !atomic_compare_exchange_strong(&wait->context, &none, context)) {
        wait = wait->next;
        none = NULL;
    }
    wait = wait ? wait : calloc(1, sizeof *wait);
    if (wait)
        loose_store(&wait->context, context);
    return wait;
}

/* Give it up, or leave it to the driver that still waits. */
static void leave(struct wait *wait)
{
    if (!wait->listed && !atomic_load(&wait->context)) {
        free(wait);
        return;
    }
    atomic_store(&wait->alone, atomic_load(&wait->context) != NULL);
    if (wait->listed)
        return;
    wait->listed = true;
    wait->next = loose_load(&left_alone);
    while (!atomic_compare_exchange_weak(&left_alone, &wait->next, wait)) { }
}

static void *wait_for_driver(void *of)
{
    struct wait *wait = of;
    struct quiet quiet = quiet_begin();
    /* It would end a capture of any thread, and one may have begun until now. */
    if (real_cuda()->cuCtxSetCurrent(loose_load(&wait->context)) == CUDA_SUCCESS && !launch_gate_captures())
        real_cuda()->cuCtxSynchronize();
    quiet_end(quiet);
    atomic_store(&wait->context, NULL);
    return NULL;
}

void await_streams(int place, uint64_t bytes)
{
    const struct real_cuda *real = real_cuda();
    CUcontext current = NULL;
    struct wait *wait = NULL;
    if (!real || !real->cuCtxSynchronize || !real->cuCtxSetCurrent || !real->cuCtxGetCurrent)
        return;
    struct quiet quiet = quiet_begin();
    if (real->cuCtxGetCurrent(&current) == CUDA_SUCCESS && current)
        current = context_whole(current);
    if (current && !is_left_alone(current))
        wait = new_wait(current);
    quiet_end(quiet);
    if (!wait)
        return;
    if (!thread_start(wait_for_driver, wait))
        atomic_store(&wait->context, NULL);
    bool fitted = memory_fits(place, bytes, 0);
    uint64_t now_ns = monotonic_ns(), until_ns = now_ns + (uint64_t)AWAIT_MOST_NS,
             apart_ns = (uint64_t)LOOK_FIRST_NS;
    while (atomic_load(&wait->context) && now_ns < until_ns && (fitted || !memory_fits(place, bytes, 0))) {
        monotonic_sleep_until(now_ns + apart_ns);
        now_ns = monotonic_ns();
        apart_ns = apart_ns < (uint64_t)MS_NS ? 2 * apart_ns : apart_ns;
    }
    leave(wait);
}

void await_forget(void)
{
    loose_store(&left_alone, NULL);
}
