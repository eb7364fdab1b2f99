#include "launch_gate.h"
#include "charge.h"
#include "credit.h"
#include "devices.h"
#include "gpu_watch.h"
#include "launch_cost.h"
#include "launch_count.h"
#include "leases.h"
#include "limits.h"
#include "monotonic.h"
#include "real.h"
#include "region.h"
#include "settings.h"
#include "streams.h"

#include <pthread.h>
#include <time.h>

enum { MEASURE_OFTEN = 7, CALLS_OF_LAUNCH = 3, SLIP_CALLS = 32, FEW_LOOKS = 20, ABOUT = 2 };

#define LATER_LOOK_NS 500000
#define FIRST_LOOK_NS 50000 /* between looks for the first measurement of a kind */
#define UNCERTAIN_WAIT_NS MS_NS
#define QUEUE_LENT_NS (7 * MS_NS)
#define STUCK_NS (5000 * MS_NS) /* between launches that are let out to somebody who may wait for them */
#define HELD_UP_NS (2 * MS_NS) /* who wakes so late was not let run */
#define OVERLONG_NS (1000 * MS_NS) /* for so long after it was last seen */

#define SELDOM __attribute__((noinline)) /* so that other launches need not save the registers it uses */

static _Atomic int captures; /* that are open, as far as seen */
static _Atomic int devices, only_place; /* 0: not known, otherwise place + 1 of the only device */
static _Atomic uint64_t noted_at_ns;

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
        atomic_store(&devices, count);
    return count;
}

SELDOM static int find_place(CUstream stream)
{
    if (device_count() != 1)
        return launch_count_at(place_of_stream(stream));
    int place = place_of_device(0);
    atomic_store(&only_place, place + 1);
    return place;
}

static inline int place_of_launch(CUstream stream)
{
    int only = atomic_load_explicit(&only_place, memory_order_relaxed);
    return only > 0 ? only - 1 : find_place(stream);
}

/* --- who says so ---------------------------------------------------------------------------------------- */

/* Tell the region's readers that we compute. */
SELDOM static void note_activity(struct lane *lane, uint64_t now_ns)
{
    struct region *region = region_mapped();
    uint64_t interval_ns = settings()->record_interval_s * UINT64_C(1000000000);
    launch_count_tell(lane);
    if (!region)
        return;
    int32_t recent = atomic_load(&region->recent_kernel);
    if (recent != LAUNCH_GATE_RECENT && !leases_of_monitor_ns(now_ns))
        atomic_compare_exchange_strong(&region->recent_kernel, &recent,
                                       LAUNCH_GATE_RECENT); /* unless it just blocked us */
    uint64_t noted_ns = atomic_load(&noted_at_ns);
    if ((!noted_ns || now_ns - noted_ns >= interval_ns)
        && atomic_compare_exchange_strong(&noted_at_ns, &noted_ns, now_ns))
        atomic_store(&region->last_kernel_time_s, (uint64_t)time(NULL));
}

/* What limits_core says; noted for who launches next. */
static struct core_share look(int place)
{
    const _Atomic uint32_t *word = limits_core_word(place);
    uint32_t seen = word ? atomic_load(word) : 0;
    int32_t seen_switch = word ? atomic_load(&region_mapped()->utilisation_switch) : 0;
    struct core_share core = limits_core(place);
    if (word && core.enforced && !core.blocked_until_ns) {
        atomic_store(&kept[place].seen, seen); /* and if another thread stores the other: both are so */
        atomic_store(&kept[place].seen_switch, seen_switch);
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

/* Whether launches wait in the GPU's queues, and others have it. */
static bool queues(const struct lane *lane, uint64_t now_ns)
{
    uint64_t since_ns = (uint64_t)atomic_load_explicit(&lane->queued_ns, memory_order_relaxed);
    return since_ns && elapsed_ns(since_ns, now_ns) > QUEUE_LENT_NS && share_contended(lane->share, now_ns);
}

/* What is the container's of the device's time now; SHARE_WHOLE_PERMILLE: no limit. What is lent is not
 * queued: it could not be returned. */
static uint32_t share_now(const struct core_share *core, const struct lane *lane, uint64_t now_ns)
{
    uint32_t permille = core->enforced ? core->container_permille : SHARE_WHOLE_PERMILLE;
    bool lent = core->lent_until_ns > now_ns && core->lent_until_ns - now_ns <= LEASES_LONGEST_NS;
    if (core->enforced && core->lent_permille && lent && !queues(lane, now_ns))
        permille += core->lent_permille < SHARE_WHOLE_PERMILLE ? core->lent_permille : SHARE_WHOLE_PERMILLE;
    return permille < SHARE_WHOLE_PERMILLE ? permille : SHARE_WHOLE_PERMILLE;
}

/* The same of a process that has lowered its own, by a budget that only it takes from: that of the container
 * grows by the container's share whoever looks, or the others would have less, too. What is lent to the
 * container raises nothing here. */
static void keep_own(struct lane *lane, uint32_t permille, uint64_t now_ns)
{
    struct share *own = &lane->own;
    if (!permille && atomic_exchange(&lane->own_permille, 0)) {
        atomic_store(&own->refilled_at_ns, 0);
        atomic_store(&own->budget_ns, 0);
    }
    if (!permille)
        return;
    atomic_store(&lane->own_permille, permille);
    atomic_store(&own->contended_at_ns, atomic_load(&lane->share->contended_at_ns));
    atomic_store(&own->caught_up_at_ns, atomic_load(&lane->share->caught_up_at_ns));
    share_refill(own, now_ns, permille);
}

/* --- what it costs -------------------------------------------------------------------------------------- */

static bool spend(struct lane *lane, int64_t cost_ns)
{
    if (atomic_fetch_sub_explicit(&lane->tokens_ns, cost_ns, memory_order_relaxed) >= cost_ns)
        return true;
    atomic_fetch_add_explicit(&lane->tokens_ns, cost_ns, memory_order_relaxed);
    return false;
}

/* Chunks of different sizes: what is measured at their ends is in step with nothing the program does. */
static int64_t chunk(uint64_t now_ns)
{
    return SHARE_CHUNK_NS / 2 + (int64_t)(estimate_mix(now_ns, 1) % (uint64_t)(SHARE_CHUNK_NS / 2));
}

/* A launch of the container has run for so much longer than it should that what it waits for may be what
 * waits here. One more of each process goes out now and then. */
static bool stuck(struct lane *lane, uint64_t now_ns)
{
    return elapsed_ns(atomic_load(&lane->launched_at_ns), now_ns) > STUCK_NS
        && now_ns - atomic_load(&lane->share->overlong_at_ns) < (uint64_t)OVERLONG_NS;
}

/* Whether to leave the budget to another thread of the process. Not for a launch that is about as short as
 * those of who has had less: as each takes what is there when it looks, neither keeps the other from it. */
static bool is_another_threads(struct lane *lane, const struct share *share, struct turn *turn,
                               int64_t cost_ns, uint64_t now_ns)
{
    return share_is_anothers_turn(share, &lane->threads.least_had, turn, now_ns)
        && cost_ns / ABOUT > atomic_load(&lane->threads.least_cost_ns);
}

static void tell_threads(struct lane *lane, const struct share *share, struct turn *turn, int64_t cost_ns,
                         uint64_t now_ns, uint32_t permille)
{
    share_tell_turn(share, &lane->threads.least_had, turn, now_ns, permille);
    if (atomic_load(&lane->threads.least_had) == atomic_load(&turn->told))
        atomic_store(&lane->threads.least_cost_ns, cost_ns);
}

static bool take(struct launch *launch, int64_t cost_ns, uint32_t permille, uint64_t now_ns)
{
    struct lane *lane = launch->lane;
    struct turn *turn = gpu_time_own_turn(lane, now_ns), *payer = atomic_load(&lane->payer);
    if (spend(lane, cost_ns)) {
        if (payer) {
            atomic_fetch_sub(&payer->had_ns, (uint64_t)cost_ns);
            atomic_fetch_add(&turn->had_ns, (uint64_t)cost_ns);
        }
        return true;
    }
    share_refill(lane->share, now_ns, permille);
    bool sweeping = atomic_load(&lane->sweep_left) > 0;
    int64_t chunk_ns = sweeping ? cost_ns : chunk(now_ns);
    uint32_t own_permille = atomic_load(&lane->own_permille);
    struct share *own = own_permille ? &lane->own : lane->share;
    bool wants = atomic_load(&own->budget_ns) > 0 || !own_permille; /* or it could not use its turn */
    bool yields = is_another_threads(lane, own, turn, cost_ns, now_ns);
    yields |= wants && share_is_anothers_turn(lane->share, &lane->share->least_had, &lane->turn, now_ns);
    if (own_permille)
        chunk_ns = yields ? 0 : share_take(own, cost_ns, chunk_ns);
    int64_t taken_ns = yields || !chunk_ns ? 0 : share_take(lane->share, cost_ns, chunk_ns);
    launch->on_credit = !taken_ns && credit_for(lane, cost_ns, now_ns);
    if (!taken_ns && (launch->on_credit || stuck(lane, now_ns))) {
        share_correct(lane->share, cost_ns);
        taken_ns = cost_ns;
    }
    if (own_permille)
        share_correct(own, taken_ns - chunk_ns);
    atomic_fetch_add(&lane->turn.had_ns, (uint64_t)taken_ns);
    atomic_fetch_add(&turn->had_ns, (uint64_t)taken_ns);
    if (wants)
        share_tell_turn(lane->share, &lane->share->least_had, &lane->turn, now_ns, permille);
    tell_threads(lane, own, turn, cost_ns, now_ns, own_permille ? own_permille : permille);
    if (!taken_ns)
        return false;
    atomic_store(&lane->payer, turn);
    atomic_fetch_add(&lane->granted_ns, taken_ns);
    atomic_fetch_add(&lane->tokens_ns, taken_ns - cost_ns);
    atomic_fetch_add(&lane->unreported_ns, taken_ns);
    atomic_fetch_add(&lane->unswept_ns, taken_ns);
    atomic_store(&lane->launched_at_ns, now_ns);
    if (!sweeping && !atomic_load(&lane->went_on_at_ns))
        atomic_store(&lane->went_on_at_ns, now_ns);
    return true;
}

/* The legacy stream cannot be told of beside a capture: what is recorded on it would end that. Where the
 * driver fails otherwise, the launch is charged: a share is not to be had by a failure. */
SELDOM static bool being_captured(const struct launch *launch)
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
 * costs this question at each launch from then on, and nothing else. */
static inline bool is_captured(const struct launch *launch)
{
    return atomic_load_explicit(&captures, memory_order_relaxed) > 0 && being_captured(launch);
}

/* --- the gate ------------------------------------------------------------------------------------------- */

/* What it takes may differ from device to device, and a CUkernel is the same on all. */
static inline uint64_t key_at(uint64_t key, int place)
{
    return place ? estimate_mix(key, (uint64_t)place) | 1 : key;
}

void launch_gate_forget(uint64_t key)
{
    for (int place = 0; place < MAX_DEVICES; place++) {
        struct estimate *estimate = estimate_find(&gpu_time_predictor, key_at(key, place));
        if (estimate)
            atomic_store(&estimate->samples, 0);
    }
}

/* How long to wait for what was launched last to be known. */
static uint64_t look_again_ns(struct launch *launch)
{
    launch->looks++;
    gpu_time_read(launch->lane);
    return launch->looks > FEW_LOOKS ? LATER_LOOK_NS : FIRST_LOOK_NS;
}

/* The same for the budget to be repaid. What is being measured was charged ahead, and may turn out to have
 * cost less: that may be all the debt there is. Of what is short, it is repaid as soon as it is known. */
static uint64_t repaid_ns(struct launch *launch, uint32_t permille, int64_t cost_ns)
{
    const struct share *share = launch->lane->share, *own = &launch->lane->own;
    uint32_t own_permille = atomic_load(&launch->lane->own_permille);
    uint64_t wait_ns = share_wait_ns(share, permille);
    if (own_permille && share_wait_ns(own, own_permille) > wait_ns) {
        share = own;
        wait_ns = share_wait_ns(own, own_permille);
    }
    if (!gpu_time_measuring(launch->lane) || wait_ns <= (uint64_t)UNCERTAIN_WAIT_NS)
        return wait_ns;
    if (cost_ns < ESTIMATE_LONG_NS)
        return UNCERTAIN_WAIT_NS;
    int64_t debt_ns = (int64_t)share_debt_ns(share, SHARE_WHOLE_PERMILLE);
    return debt_ns < atomic_load(&launch->lane->uncertain_ns) ? look_again_ns(launch) : UNCERTAIN_WAIT_NS;
}

/* How long to wait before asking again; 0: go. */
static uint64_t ask(struct launch *launch, int place, uint64_t now_ns)
{
    struct core_share core = limits_core(place);
    uint64_t due_ns = launch->due_ns;
    launch->due_ns = 0;
    uint64_t blocked_ns = leases_until_ns(place, core.blocked_until_ns, now_ns);
    if (blocked_ns)
        return blocked_ns - now_ns < (uint64_t)SHARE_WAIT_MOST_NS ? blocked_ns - now_ns
                                                                  : (uint64_t)SHARE_WAIT_MOST_NS;
    uint32_t permille = share_now(&core, launch->lane, now_ns);
    bool lowered = core.enforced && core.permille < core.container_permille;
    launch->cost_ns = 0;
    keep_own(launch->lane, lowered ? core.permille : 0, now_ns);
    if (permille == SHARE_WHOLE_PERMILLE && !lowered)
        return 0;
    int64_t cost_ns = launch_cost_ns(launch);
    uint64_t look_ns = cost_ns ? 0 : look_again_ns(launch);
    const struct estimate *known = look_ns ? estimate_find(&gpu_time_predictor, launch->key) : NULL;
    if (look_ns && (!known || !atomic_load(&known->deviation)))
        cost_ns = launch_cost_ns(launch); /* unless its kind varies: what was waited for says nothing of it */
    if (!cost_ns)
        return look_ns;
    if (due_ns && now_ns > due_ns + (uint64_t)HELD_UP_NS && permille < SHARE_WHOLE_PERMILLE)
        share_held_up(launch->lane->share, now_ns, now_ns - due_ns, permille);
    if (!take(launch, cost_ns, permille, now_ns)) {
        launch_cost_drop_guess(launch);
        uint64_t wait_ns = repaid_ns(launch, permille, cost_ns);
        if (credit_may_come(launch->lane, now_ns))
            wait_ns = SHARE_WAIT_LEAST_NS;
        launch->due_ns = now_ns + wait_ns;
        return wait_ns;
    }
    launch->cost_ns = cost_ns;
    return 0;
}

static void note_wait(struct launch *launch, int place, uint64_t ns)
{
    struct region_slot *own = region_own_slot();
    atomic_fetch_add(&launch->lane->share->throttled_ns, ns);
    if (own)
        atomic_fetch_add(&own->used[place].throttled_ns, ns);
}

static void pass_slowly(struct launch *launch, int place)
{
    uint64_t began_ns = monotonic_ns(), noted_ns = began_ns, now_ns = began_ns, wait_ns;
    if (being_captured(launch)) { /* by a capture that was not seen to begin */
        launch->lane = NULL;
        return;
    }
    note_activity(launch->lane, now_ns);
    while ((wait_ns = ask(launch, place, now_ns)) > 0) {
        monotonic_sleep_holding_nothing(now_ns + wait_ns);
        now_ns = monotonic_ns();
        if (now_ns - noted_ns >= (uint64_t)SHARE_WAIT_NOTED_NS) { /* it may last for hours */
            note_wait(launch, place, now_ns - noted_ns);
            noted_ns = now_ns;
        }
    }
    if (now_ns - began_ns >= (uint64_t)SHARE_WAIT_LEAST_NS) {
        atomic_fetch_add(&launch->lane->share->waits, 1);
        note_wait(launch, place, now_ns - noted_ns);
    }
    if (launch->cost_ns
        && (launch_cost_is_to_be_measured(launch, now_ns) || credit_is_asked(launch->lane, now_ns))) {
        atomic_store(&launch->lane->measured_at_ns, now_ns);
        launch->trace =
            gpu_time_begin(launch->lane, launch->stream, launch->per_thread, launch->guess, launch->always);
    }
    if (!launch->cost_ns)
        launch->lane = NULL;
}

/* Launches from one that is measured to the next: one less now and then, so that all of a pattern of as many
 * is seen. */
static inline uint32_t measured_apart(const struct lane *lane)
{
    int64_t calls = atomic_load_explicit(&lane->calls, memory_order_relaxed);
    return MEASURE_OFTEN - (calls % SLIP_CALLS < CALLS_OF_LAUNCH);
}

/* Whether the launch is paid for already. */
static inline bool is_paid(struct launch *launch)
{
    struct estimate *estimate = estimate_find(&gpu_time_predictor, launch->key);
    if (!estimate || atomic_load_explicit(&estimate->samples, memory_order_relaxed) < ESTIMATE_SAMPLES)
        return false;
    launch->cost_ns = atomic_load_explicit(&estimate->ns, memory_order_relaxed);
    bool measured = estimate_measures_all(estimate)
        || (estimate_measures_often(estimate) && launch_count_untold() % measured_apart(launch->lane) == 0);
    return !measured && spend(launch->lane, launch->cost_ns);
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
    atomic_store(&launch_gate_words[device].word, word);
    atomic_store(&launch_gate_words[device].seen, seen);
    return true;
}

/* Where no device has a limit, let launches go by until one has. */
static void open_gate(void)
{
    struct region *region = region_mapped();
    int count = device_count();
    if (!region || count > MAX_DEVICES)
        return;
    for (CUdevice device = 0; device < count; device++)
        if (!open_for(device))
            return;
    atomic_store(&launch_gate_recent, &region->recent_kernel);
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
        note_activity(launch->lane, monotonic_ns());
    if (!blocked && core.enforced)
        return true;
    if (blocked)
        pass_slowly(launch, place);
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
    launch->lane = gpu_lane(place);
    if (!launch->lane)
        return;
    launch->key = key_at(key, place);
    launch_count_add(); /* whichever way it goes */
    bool as_noted = launch_count_untold() < LAUNCH_COUNT_MOST && is_kept(place);
    if ((as_noted || is_to_pay(launch, place)) && !is_paid(launch))
        pass_slowly(launch, place);
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
    if (launch->lane && !launched)
        atomic_fetch_add(&launch->lane->tokens_ns, launch->cost_ns);
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
