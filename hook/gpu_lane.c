/* What is known and charged of a lane without asking the driver. */
#include "counters.h"
#include "gpu_traces.h"

#include <pthread.h>

enum { LEGACY_STREAM = 1, OWN_STREAM = 2 }; /* as handles: CU_STREAM_LEGACY, CU_STREAM_PER_THREAD */

uint64_t gpu_time_stream(CUstream stream, bool per_thread)
{
    bool own = (uintptr_t)stream == OWN_STREAM || (per_thread && !stream);
    return own ? (uint64_t)pthread_self() | 1 : (uintptr_t)stream & ~(uint64_t)LEGACY_STREAM;
}

struct turn *gpu_time_own_turn(struct lane *lane, uint64_t now_ns)
{
    return &lane->threads.of[share_turn_of(&lane->threads, (uint64_t)pthread_self() | 1, now_ns)];
}

uint64_t gpu_time_stream_bit(struct lane *lane, uint64_t stream, uint64_t now_ns, int64_t busy_ns)
{
    struct turns *streams = &traces_of(lane)->streams;
    unsigned turn = share_turn_of(streams, past_stream_only(stream) + 1, now_ns);
    uint64_t idle_at_ns = loose_load(&streams->of[turn].idle_at_ns);
    idle_at_ns = (idle_at_ns > now_ns ? idle_at_ns : now_ns) + (uint64_t)busy_ns;
    if (busy_ns)
        loose_store(&streams->of[turn].idle_at_ns, idle_at_ns);
    return UINT64_C(1) << turn;
}

bool gpu_time_in_series(struct lane *lane, uint64_t bit, uint64_t now_ns, int64_t for_ns)
{
    _Atomic uint64_t *until_ns = traces_of(lane)->in_series_until_ns;
    int turn = __builtin_ctzll(bit);
    if (for_ns && elapsed_ns(loose_load(&until_ns[turn]), now_ns + (uint64_t)for_ns) > 0)
        loose_store(&until_ns[turn], now_ns + (uint64_t)for_ns);
    bool in_series = for_ns || elapsed_ns(loose_load(&until_ns[turn]), now_ns) < 0;
    for (int i = 0; i < SHARE_TURNS && in_series && !for_ns; i++)
        in_series = i == turn || elapsed_ns(loose_load(&until_ns[i]), now_ns) >= 0;
    return in_series;
}

uint64_t gpu_time_busy_streams(struct lane *lane, uint64_t now_ns)
{
    uint64_t busy = 0;
    for (int i = 0; i < SHARE_TURNS && !gpu_time_several_contexts(lane); i++) /* which take turns */
        busy |= (uint64_t)(loose_load(&traces_of(lane)->streams.of[i].idle_at_ns) > now_ns) << i;
    return busy;
}

void gpu_time_note_spent(struct lane *lane, uint64_t now_ns, int64_t beyond_ns)
{
    struct noted *noted = &traces_of(lane)->noted[atomic_fetch_add(&lane->noted_next, 1) % NOTED];
    if (atomic_load(&noted->at_ns)) /* not read yet */
        return;
    loose_store(&noted->spent_ns, gpu_time_spent_ns(lane) - loose_load(&lane->always_ns) - beyond_ns);
    atomic_store(&noted->at_ns, (int64_t)now_ns);
}

int gpu_time_guesses(struct lane *lane, uint64_t key)
{
    int guesses = 0;
    for (struct trace *trace = NULL; (trace = trace_next(traces_of(lane), trace));)
        guesses += atomic_load_explicit(&trace->guessed_key, memory_order_relaxed) == key;
    return guesses;
}

bool gpu_time_measuring(struct lane *lane)
{
    return trace_next(traces_of(lane), NULL) != NULL;
}

/* Once, for size. */
__attribute__((noinline)) void gpu_time_correct(struct lane *lane, struct turn *turn, int64_t ns)
{
    share_correct(lane->share, ns);
    if (loose_load(&lane->own_permille))
        share_correct(&lane->own, ns);
    count_more_ns(&lane->unreported_ns, ns);
    count_more(&lane->turn.had_ns, (uint64_t)ns);
    count_more(&turn->had_ns, (uint64_t)ns);
}

__attribute__((noinline)) void gpu_time_drop_tokens(struct lane *lane)
{
    int64_t tokens_ns = atomic_exchange(&lane->tokens_ns, 0);
    atomic_fetch_sub(&lane->granted_ns, tokens_ns);
    if (tokens_ns)
        gpu_time_correct(lane, loose_load(&lane->payer), -tokens_ns);
}

/* --- launches that are measured ------------------------------------------------------------------------- */

size_t trace_find_probe(const struct measured_lane *lane, CUcontext context)
{
    size_t i = 0;
    while (i < PROBES && lane->probes[i].context != context)
        i++;
    return i;
}

/* Its own place, near that which its key says: were two kinds to share one, every launch of either would
 * seem to be among the first of its kind. */
struct doubt *trace_doubt(struct measured_lane *lane, uint64_t key)
{
    struct doubt *free = NULL;
    for (size_t i = 0; i < DOUBT_WAYS; i++) {
        struct doubt *doubt = &lane->doubts[((key >> 32) + i) & (DOUBTS - 1)];
        if (doubt->key == key)
            return doubt;
        if (!free || (free->key && !doubt->key))
            free = doubt;
    }
    *free = (struct doubt){.key = key, .swept = free->key ? SWEPT_MOST : SWEPT_LEAST};
    return free;
}

void trace_goes_out(struct measured_lane *lane, const struct trace *trace)
{
    size_t place = trace_place(lane, trace);
    atomic_fetch_or(&lane->out[place / 64], UINT64_C(1) << place % 64);
}

/* Once, for size. */
__attribute__((noinline)) void trace_leave(struct measured_lane *lane, struct trace *trace)
{
    size_t place = trace_place(lane, trace);
    atomic_fetch_and(&lane->out[place / 64], ~(UINT64_C(1) << place % 64));
    atomic_store(&trace->taken, false);
}

struct trace *trace_next(struct measured_lane *lane, const struct trace *after)
{
    size_t i = after ? trace_place(lane, after) + 1 : 0;
    uint64_t left = 0;
    while (i < TRACES && !(left = atomic_load(&lane->out[i / 64]) >> i % 64))
        i = (i | 63) + 1;
    return left ? &lane->traces[i + (size_t)__builtin_ctzll(left)] : NULL;
}

void trace_runs(struct measured_lane *lane, struct trace *trace, int64_t from_ns)
{
    trace->run = past_began(&lane->past, trace->stream, from_ns);
    past_launched(&lane->past, trace->run, trace->launch_call, trace->expected_ns, trace->always);
}

void trace_charge(struct measured_lane *lane, struct trace *trace, int64_t ns)
{
    gpu_time_correct(&lane->lane, trace->turn, ns - trace->charged_ns);
    trace->charged_ns = ns;
}

void trace_finish(struct measured_lane *lane, struct trace *trace)
{
    if (trace->guess)
        atomic_fetch_sub(&lane->lane.guesses, 1);
    if (trace->sweep)
        atomic_fetch_sub(&lane->lane.sweep_out, 1);
    loose_store(&trace->guessed_key, 0);
    trace->ordered = false;
    trace_leave(lane, trace);
}

void trace_drop(struct measured_lane *lane, struct trace *trace)
{
    if (trace->running_since_ns)
        past_ended(&lane->past, trace->run, 0, 0);
    trace_finish(lane, trace);
}
