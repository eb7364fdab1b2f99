#include "launch_count.h"

#include <pthread.h>

_Thread_local struct launch_count launch_count __attribute__((tls_model("initial-exec")));

static pthread_key_t key; /* the lane that a thread has told last */
static bool has_key;

int launch_count_at(int place)
{
    if (place >= 0)
        launch_count.known[place]++;
    return place;
}

static uint32_t add(struct lane *lane, uint32_t launches)
{
    if (launches)
        atomic_fetch_add_explicit(&lane->share->launches, launches, memory_order_relaxed);
    return launches;
}

/* Where launches were made a lane is open: the gate has passed them on by it. */
static void tell(void *lane)
{
    uint32_t left = launch_count_untold() & ~LAUNCH_COUNT_FRESH;
    for (int place = 0; place < MAX_DEVICES; place++) {
        left -= add(atomic_load_explicit(&gpu_lanes[place], memory_order_relaxed), launch_count.known[place]);
        launch_count.known[place] = 0;
    }
    add(lane, left);
    launch_count.noted = LAUNCH_COUNT_FRESH;
}

void launch_count_begin(void)
{
    has_key = pthread_key_create(&key, tell) == 0;
}

void launch_count_tell(struct lane *lane)
{
    if (has_key)
        pthread_setspecific(key, lane);
    tell(lane);
}
