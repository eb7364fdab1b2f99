#include "launch_gate.h"
#include "charge.h"
#include "credit.h"
#include "devices.h"
#include "gpu_watch.h"
#include "launch_budget.h"
#include "launch_cost.h"
#include "launch_count.h"
#include "launch_wait.h"
#include "leases.h"
#include "limits.h"
#include "monotonic.h"
#include "real.h"
#include "region.h"
#include "settings.h"
#include "streams.h"

#include <pthread.h>
#include <time.h>

enum { MEASURE_OFTEN = 7, CALLS_OF_LAUNCH = 3, SLIP_CALLS = 32 };

#define SELDOM __attribute__((noinline)) /* so that other launches need not save the registers it uses */

static _Atomic int captures; /* that are open, as far as seen */
static _Atomic int devices, only_place; /* 0: not known, otherwise place + 1 of the only device */

/* By place: what the words were that say so when a share was to be kept and the agent blocked nothing. That
 * is so whenever they are the same, so nobody has to take it back. */
static struct {
    _Atomic(const _Atomic uint32_t *) word; /* of limits_core_word; NULL: it never was so */
    _Atomic uint32_t seen;
    _Atomic int32_t seen_switch;
} kept[MAX_DEVICES];

struct launch_gate_word launch_gate_words[MAX_DEVICES];
_Atomic int launch_gate_devices;
_Atomic(const _Atomic int32_t *) launch_gate_recent;

/* --- where ---------------------------------------------------------------------------------------------- */

/* Of this process; 0: not known. */
static int device_count(void)
{
    const struct real_cuda *real = real_cuda();
    int count = atomic_load_explicit(&devices, memory_order_relaxed);
    if (!count && real->cuDeviceGetCount && real->cuDeviceGetCount(&count) == CUDA_SUCCESS && count > 0)
        loose_store(&devices, count);
    return count;
}

SELDOM static int find_place(CUstream stream)
{
    if (device_count() != 1)
        return launch_count_at(place_of_stream(stream));
    int place = place_of_device(0);
    loose_store(&only_place, place + 1);
    return place;
}

static inline int place_of_launch(CUstream stream)
{
    int only = atomic_load_explicit(&only_place, memory_order_relaxed);
    return only > 0 ? only - 1 : find_place(stream);
}

/* --- who says so ---------------------------------------------------------------------------------------- */

/* What limits_core says; noted for who launches next. */
static struct core_share look(int place)
{
    const _Atomic uint32_t *word = limits_core_word(place);
    uint32_t seen = word ? atomic_load(word) : 0;
    int32_t seen_switch = word ? atomic_load(&region_mapped()->utilisation_switch) : 0;
    struct core_share core = limits_core(place);
    if (word && core.enforced && !core.blocked_until_ns) {
        loose_store(&kept[place].seen, seen); /* and if another thread stores the other: both are so */
        loose_store(&kept[place].seen_switch, seen_switch);
        atomic_store(&kept[place].word, word);
    }
    return core;
}

/* Whether a share is to be kept and nobody blocks us, as was noted. */
static inline bool is_kept(int place)
{
    const _Atomic uint32_t *word = atomic_load_explicit(&kept[place].word, memory_order_acquire);
    const struct region *region = region_mapped();
    return word
        && atomic_load_explicit(word, memory_order_relaxed)
        == atomic_load_explicit(&kept[place].seen, memory_order_relaxed)
        && atomic_load_explicit(&region->utilisation_switch, memory_order_relaxed)
        == atomic_load_explicit(&kept[place].seen_switch, memory_order_relaxed)
        && atomic_load_explicit(&region->recent_kernel, memory_order_relaxed) == LAUNCH_GATE_RECENT;
}

/* --- captures ------------------------------------------------------------------------------------------- */

/* The legacy stream cannot be told of beside a capture: what is recorded on it would end that. Where the
 * driver fails otherwise, the launch is charged: a share is not to be had by a failure. */
SELDOM bool launch_gate_is_captured(const struct launch *launch)
{
    const struct real_cuda *real = real_cuda();
    CUstreamCaptureStatus status = CAPTURE_NONE;
    __typeof__(&cuStreamIsCapturing) ask = launch->per_thread && real->cuStreamIsCapturing_ptsz
        ? real->cuStreamIsCapturing_ptsz
        : real->cuStreamIsCapturing;
    CUresult result = ask ? ask(launch->stream, &status) : CUDA_SUCCESS;
    return result == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT || (result == CUDA_SUCCESS && status != CAPTURE_NONE);
}

/* The same, asked only while a capture is open. One that was never seen to end, for its stream was destroyed,
 * costs this question at each launch and each free in a stream from then on, and nothing else. */
static inline bool is_captured(const struct launch *launch)
{
    return atomic_load_explicit(&captures, memory_order_relaxed) > 0 && launch_gate_is_captured(launch);
}

/* --- the gate ------------------------------------------------------------------------------------------- */

/* What it takes may differ from device to device, and a CUkernel is the same on all. */
static inline uint64_t key_at(uint64_t key, int place)
{
    return place ? (estimate_mix(key, (uint64_t)place) & ~ESTIMATE_FAMILY) | (key & ESTIMATE_FAMILY) | 1
                 : key;
}

/* All but a single measurement: of what becomes another before each launch nothing would be known ever, and
 * each would wait for the one before. Of one that was measured once two go out, and are measured. */
void launch_gate_forget(uint64_t key)
{
    for (int place = 0; place < MAX_DEVICES; place++) {
        struct estimate *estimate = estimate_find(&gpu_time_predictor, key_at(key, place));
        if (estimate && loose_load(&estimate->samples) > 1) {
            loose_store(&estimate->samples, 0);
            loose_store(&estimate->deviation, 0); /* or it is waited for as one that varies */
        }
    }
}

/* Launches from one that is measured to the next: one less now and then, so that all of a pattern of as many
 * is seen. */
static inline uint32_t measured_apart(const struct lane *lane)
{
    int64_t calls = atomic_load_explicit(&lane->calls, memory_order_relaxed);
    return MEASURE_OFTEN - (calls % SLIP_CALLS < CALLS_OF_LAUNCH);
}

#define LOOK_AT_ALL_NS 100000 /* launches from here on are known to run, by when they were made */

/* Whether the launch is paid for already. Its kind and lane as its maker has them: to read them out of it
 * again would be waited for. */
static inline bool is_paid(struct launch *launch, uint64_t key, struct lane *lane)
{
    struct estimate *estimate = estimate_find(&gpu_time_predictor, key);
    if (!estimate || loose_load(&estimate->samples) < ESTIMATE_SAMPLES)
        return false;
    int64_t cost_ns = launch->cost_ns = loose_load(&estimate->ns);
    bool measured = estimate_measures_all(estimate)
        || (estimate_measures_often(estimate) && launch_count_untold() % measured_apart(lane) == 0);
    return !measured && cost_ns < LOOK_AT_ALL_NS && loose_load(&lane->sweep_left) <= 0
        && launch_budget_spend(lane, cost_ns);
}

/* Note the device's word, if nothing is kept, lent or blocked there. */
static bool open_for(CUdevice device)
{
    int place = place_of_device(device);
    const _Atomic uint32_t *word = limits_core_word(place);
    if (!word)
        return false;
    uint32_t seen = atomic_load(word);
    struct core_share core = limits_core(place);
    if (core.permille < SHARE_WHOLE_PERMILLE || core.blocked_until_ns)
        return false; /* a word that has changed meanwhile is not the one seen: the gate is shut */
    loose_store(&launch_gate_words[device].word, word);
    loose_store(&launch_gate_words[device].seen, seen);
    return true;
}

/* Where no device has a limit, let launches go by until one has. */
static void open_gate(void)
{
    struct region *region = region_mapped();
    int count = device_count();
    if (!region || count > MAX_DEVICES || launch_gate_is_as_opened(atomic_load(&launch_gate_devices)))
        return;
    for (CUdevice device = 0; device < count; device++)
        if (!open_for(device))
            return;
    loose_store(&launch_gate_recent, &region->recent_kernel);
    atomic_store_explicit(&launch_gate_devices, count, memory_order_release);
}

/* Whether it is to be paid for. If not, it passes here, and may have waited. */
SELDOM static bool is_to_pay(struct launch *launch, int place)
{
    struct core_share core = look(place);
    const struct region *region = region_mapped();
    bool blocked = core.blocked_until_ns || !region
        || atomic_load_explicit(&region->recent_kernel, memory_order_relaxed) != LAUNCH_GATE_RECENT;
    if (!blocked && launch_count_untold() >= LAUNCH_COUNT_MOST)
        launch_wait_note(launch->lane, monotonic_ns());
    if (!blocked && core.enforced)
        return true;
    if (blocked)
        launch_wait(launch, place);
    else
        launch->lane = NULL;
    if (launch_count_untold() == 0 && core.permille >= SHARE_WHOLE_PERMILLE && !core.blocked_until_ns)
        open_gate();
    return false;
}

void launch_gate_pass(struct launch *launch, CUstream stream, bool per_thread, uint64_t key)
{
    *launch = (struct launch){.key = key, .stream = stream, .per_thread = per_thread};
    if (!charging_inline() || is_captured(launch))
        return;
    int place = place_of_launch(stream);
    struct lane *lane = launch->lane = gpu_lane(place);
    if (!lane)
        return;
    key = launch->key = key_at(key, place);
    launch_count_add(); /* whichever way it goes */
    bool as_noted = launch_count_untold() < LAUNCH_COUNT_MOST && is_kept(place);
    if ((as_noted || is_to_pay(launch, place)) && !is_paid(launch, key, lane))
        launch_wait(launch, place);
}

void launch_gate_delayed(struct launch *launch)
{
    if (launch->trace)
        gpu_time_begin_again(launch->lane, launch->trace, launch->stream, launch->per_thread);
}

SELDOM static void settle(struct launch *launch, CUresult result)
{
    bool launched = result == CUDA_SUCCESS;
    bool measured = launch->trace
        && gpu_time_end(launch->lane, launch->trace, launch->stream, launch->per_thread, launch->key,
                        launch->cost_ns, launch->sweep, launch->on_credit, launched);
    if (!measured)
        launch_cost_drop_guess(launch);
    if (launch->trace)
        gpu_watch(monotonic_ns()); /* from now on: the call may have taken longer than who watches lingers */
    if (launch->lane && !launched) {
        atomic_fetch_add(&launch->lane->tokens_ns, launch->cost_ns);
        atomic_fetch_sub(&launch->lane->always_ns, launch->in_series ? launch->cost_ns : 0);
        gpu_time_drop_tokens(launch->lane); /* or others would pass on them without a look */
    }
}

void launch_gate_passed(struct launch *launch, CUresult result)
{
    if (launch->trace || launch->guess || result != CUDA_SUCCESS)
        settle(launch, result);
}

void launch_gate_capture(bool begun)
{
    int open = atomic_load(&captures);
    while (!atomic_compare_exchange_weak(&captures, &open, begun ? open + 1 : open > 0 ? open - 1 : 0)) { }
}

bool launch_gate_captures(void)
{
    return atomic_load(&captures) > 0;
}
