#include "clock.h"

#include "../process.h"
#include "engine.h"
#include "execution_state.h"
#include "virtual_clock.h"

#include <errno.h>
#include <linux/futex.h>
#include <sched.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define MS_NS (1000ULL * 1000)

enum {
    LEAST_SLEEP_NS = 20 * 1000,
    MOST_SLEEP_NS = 10 * 1000 * 1000, /* less may be left if another process ends */
    AHEAD_NS = 20 * 1000, /* how far a thread may be ahead of the others */
    READ_NS = 25, /* what looking at the clock costs, so that waiting for it in a loop ends */
    PATIENCE_MS = 50, /* real time until somebody looks whether the others still live */
    STUCK_MS = 2000, /* and until the one that runs is taken to wait for something unknown here, */
    BUSY_MS = 60 * 1000, /* if it would not run if it were let */
};

static _Thread_local uint32_t my_row; /* + 1 */
static _Thread_local uint64_t my_base_ns, my_lead_ns; /* the thread's own time is their sum */
static uint32_t my_rank;
static _Atomic uint32_t my_threads;
static _Atomic bool joined;

/* --- real time ------------------------------------------------------------------------------------------ */

/* Not by the C library, whose functions a program under the virtual clock replaces. */
static uint64_t kernel_ns(void)
{
    struct timespec now;
    syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

uint64_t clock_real_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

void clock_real_sleep(uint64_t ns)
{
    ns = ns < LEAST_SLEEP_NS ? LEAST_SLEEP_NS : ns > MOST_SLEEP_NS ? MOST_SLEEP_NS : ns;
    struct timespec left = {.tv_nsec = (long)ns};
    syscall(SYS_nanosleep, &left, NULL);
}

/* --- whose turn it is; all with the state locked ---------------------------------------------------------
 */

bool clock_reached(const struct execution *execution, const struct awaited *awaited)
{
    if (awaited->event)
        return execution->events[awaited->event - 1].done_turn >= awaited->target;
    return execution->streams[awaited->stream - 1].head >= awaited->target;
}

static bool waits_for_gpu(const struct thread_row *row)
{
    return row->state == THREAD_AWAITS_STREAM || row->state == THREAD_AWAITS_EVENT;
}

/* Threads whose wait for the GPU is over go on, but not before their own time. */
static bool release(struct execution *execution)
{
    bool any = false;
    for (uint32_t i = 0; i < execution->thread_high; i++) {
        struct thread_row *row = &execution->threads[i];
        if (!waits_for_gpu(row))
            continue;
        struct awaited awaited = {.target = row->target};
        *(row->state == THREAD_AWAITS_STREAM ? &awaited.stream : &awaited.event) = row->object;
        if (!clock_reached(execution, &awaited))
            continue;
        row->state = THREAD_SLEEPS;
        row->wake_ns = row->wake_ns > execution->now_ns ? row->wake_ns : execution->now_ns;
        any = true;
    }
    return any;
}

static bool before(const struct thread_row *one, const struct thread_row *other)
{
    if (!other || one->wake_ns != other->wake_ns)
        return !other || one->wake_ns < other->wake_ns;
    return one->rank != other->rank ? one->rank < other->rank : one->number < other->number;
}

static struct thread_row *earliest(struct execution *execution)
{
    struct thread_row *first = NULL;
    for (uint32_t i = 0; i < execution->thread_high; i++)
        if (execution->threads[i].state == THREAD_SLEEPS && before(&execution->threads[i], first))
            first = &execution->threads[i];
    return first;
}

/* Let the GPUs work until a thread is to go on, and give it the turn. */
static void give_turn(struct execution *execution)
{
    struct thread_row *first;
    execution->running_thread = NOTHING;
    if (execution->processes_joined < execution->processes_expected)
        return;
    while (true) {
        release(execution);
        first = earliest(execution);
        if (first && first->wake_ns <= execution->now_ns)
            break;
        engine_advance(execution, execution->now_ns, false); /* who has the GPU, given what is new */
        if (release(execution))
            continue;
        uint64_t next_ns = engine_next_ns(execution);
        if (!first && next_ns == UINT64_MAX)
            return; /* all wait for something that is not of this world */
        engine_advance(execution, first && first->wake_ns < next_ns ? first->wake_ns : next_ns, true);
    }
    first->state = THREAD_RUNS;
    execution->running_thread = (uint32_t)(first - execution->threads);
    execution->given_ns = kernel_ns();
    if (first->pid == execution_pid() && execution->running_thread + 1 == my_row)
        return;
    atomic_fetch_add(&first->turn, 1);
    syscall(SYS_futex, &first->turn, FUTEX_WAKE, 1, NULL, NULL, 0);
}

static void forget_the_dead(struct execution *execution)
{
    execution_end_the_dead(execution);
    for (uint32_t i = 0; i < execution->thread_high; i++) {
        struct thread_row *row = &execution->threads[i];
        if (row->state != THREAD_FREE && process_gone((int32_t)row->pid, row->start_time)) {
            row->state = THREAD_FREE;
            row->pid = 0;
        }
    }
}

/* The machine has much to do, or this thread has: it is in no wait that somebody could end. */
static bool is_busy(uint32_t tid)
{
    char state = tid ? process_state((int32_t)tid) : 0;
    return state == 'R' || state == 'D';
}

/* Somebody waits for long: are the others still there? */
static void look_after(struct execution *execution)
{
    forget_the_dead(execution);
    uint32_t running = execution->running_thread;
    if (running != NOTHING && execution->threads[running].state == THREAD_RUNS) {
        uint64_t since_ns = kernel_ns() - execution->given_ns;
        if (since_ns < STUCK_MS * MS_NS
            || (since_ns < BUSY_MS * MS_NS && is_busy(execution->threads[running].tid)))
            return;
        execution->threads[running].state = THREAD_OUTSIDE;
    }
    give_turn(execution);
}

/* Wait for the turn. The calling thread's row says since when, or for what. */
static void wait_turn(struct execution *execution)
{
    uint32_t place = my_row - 1;
    struct thread_row *row = &execution->threads[place];
    bool given = execution->running_thread == place && row->state == THREAD_RUNS; /* to a new thread */
    if (!given && (execution->running_thread == place || execution->running_thread == NOTHING))
        give_turn(execution);
    while (execution->running_thread != place) {
        uint32_t seen = atomic_load(&row->turn);
        struct timespec patience = {.tv_nsec = PATIENCE_MS * 1000000L};
        execution_unlock(execution);
        long answer = syscall(SYS_futex, &row->turn, FUTEX_WAIT, seen, &patience, NULL, 0);
        bool late = answer != 0 && errno == ETIMEDOUT;
        if (execution_lock() != execution)
            return;
        if (row->pid != execution_pid()) { /* taken for dead, or the process ends */
            my_row = 0;
            return;
        }
        if (row->state == THREAD_OUTSIDE)
            row->state = THREAD_SLEEPS; /* it was only slow to take its turn, which went to another */
        if (late && execution->running_thread != place)
            look_after(execution);
    }
    my_base_ns = row->wake_ns > execution->now_ns ? row->wake_ns : execution->now_ns;
    my_lead_ns = 0;
}

static struct thread_row *my_thread(struct execution *execution)
{
    return my_row ? &execution->threads[my_row - 1] : NULL;
}

/* Sleep until then. */
static void sleep_until(struct execution *execution, uint64_t ns)
{
    struct thread_row *row = my_thread(execution);
    uint64_t local_ns = clock_local_ns(execution);
    row->state = THREAD_SLEEPS;
    row->wake_ns = ns > local_ns ? ns : local_ns;
    wait_turn(execution);
}

/* --- what the simulated driver uses --------------------------------------------------------------------- */

uint64_t clock_local_ns(const struct execution *execution)
{
    if (!my_row)
        return execution->now_ns;
    uint64_t local_ns = my_base_ns + my_lead_ns;
    return local_ns > execution->now_ns ? local_ns : execution->now_ns;
}

static bool anyone_takes_part(const struct execution *execution)
{
    for (uint32_t i = 0; i < execution->thread_high; i++)
        if (execution->threads[i].state != THREAD_FREE)
            return true;
    return false;
}

/* A thread that takes no part looks on; if nobody takes part, it moves the time itself. */
static bool look_on(struct execution *execution)
{
    if (anyone_takes_part(execution))
        return false;
    engine_advance(execution, execution->now_ns, false);
    uint64_t next_ns = engine_next_ns(execution);
    if (next_ns != UINT64_MAX)
        engine_advance(execution, next_ns, false);
    return next_ns != UINT64_MAX;
}

void clock_settle(struct execution *execution)
{
    if (my_row)
        sleep_until(execution, 0);
    else
        look_on(execution);
}

void clock_await(struct execution *execution, const struct awaited *awaited)
{
    struct thread_row *row = my_thread(execution);
    if (!row) {
        if (!look_on(execution)) {
            execution_unlock(execution);
            clock_real_sleep(MS_NS);
            execution_lock();
        }
        return;
    }
    row->wake_ns = clock_local_ns(execution);
    row->state = awaited->stream ? THREAD_AWAITS_STREAM : THREAD_AWAITS_EVENT;
    row->object = awaited->stream ? awaited->stream : awaited->event;
    row->target = awaited->target;
    wait_turn(execution);
}

void clock_spend(uint64_t ns)
{
    if (!my_row)
        return;
    my_lead_ns += ns;
    if (my_lead_ns < AHEAD_NS)
        return;
    struct execution *execution = execution_lock();
    if (!execution)
        return;
    clock_settle(execution);
    execution_unlock(execution);
}

/* --- taking part ---------------------------------------------------------------------------------------- */

static uint32_t new_row(struct execution *execution, uint64_t wake_ns)
{
    for (uint32_t i = 0; i < MAX_THREADS; i++) {
        struct thread_row *row = &execution->threads[i];
        if (row->state != THREAD_FREE)
            continue;
        uint32_t turn = atomic_load(&row->turn);
        row->pid = execution_pid();
        row->tid = 0;
        row->start_time = execution_start_time();
        row->wake_ns = wake_ns;
        row->rank = my_rank;
        row->number = atomic_fetch_add(&my_threads, 1);
        atomic_store(&row->turn, turn + 1);
        row->state = THREAD_SLEEPS;
        if (execution->thread_high <= i)
            execution->thread_high = i + 1;
        return i + 1;
    }
    return 0;
}

EXPORT int sim_clock_join(unsigned processes, unsigned rank)
{
    struct execution *execution = execution_lock();
    if (!execution)
        return -1;
    if (!execution->virtual_clock || my_row) {
        execution_unlock(execution);
        return -1;
    }
    forget_the_dead(execution);
    if (!anyone_takes_part(execution)) /* those of before are gone */
        execution->processes_joined = execution->processes_expected = 0;
    my_rank = rank;
    my_row = new_row(execution, execution->now_ns);
    execution->processes_joined++;
    if (execution->processes_expected < processes)
        execution->processes_expected = processes;
    if (my_row) {
        atomic_store(&joined, true);
        my_thread(execution)->tid = (uint32_t)syscall(SYS_gettid);
        wait_turn(execution);
    }
    execution_unlock(execution);
    return my_row ? 0 : -1;
}

EXPORT int sim_clock_processor(void)
{
    struct execution *execution = execution_lock();
    if (!execution)
        return -1;
    if (!execution->processor)
        execution->processor = (uint32_t)sched_getcpu() + 1;
    int processor = (int)execution->processor - 1;
    execution_unlock(execution);
    return processor;
}

EXPORT bool sim_clock_joined(void)
{
    return my_row != 0;
}

EXPORT unsigned sim_clock_new_thread(void)
{
    struct execution *execution = my_row ? execution_lock() : NULL;
    if (!execution)
        return 0;
    uint32_t row = new_row(execution, clock_local_ns(execution));
    execution_unlock(execution);
    return row;
}

EXPORT void sim_clock_enter(unsigned row)
{
    struct execution *execution = row ? execution_lock() : NULL;
    if (!execution)
        return;
    my_row = row;
    my_thread(execution)->tid = (uint32_t)syscall(SYS_gettid);
    wait_turn(execution);
    execution_unlock(execution);
}

static void drop(struct execution *execution, uint32_t place)
{
    execution->threads[place].state = THREAD_FREE;
    execution->threads[place].pid = 0;
    if (execution->running_thread == place)
        give_turn(execution);
}

EXPORT void sim_clock_leave(unsigned row)
{
    struct execution *execution = row || my_row ? execution_lock() : NULL;
    if (!execution)
        return;
    drop(execution, (row ? row : my_row) - 1);
    if (!row)
        my_row = 0;
    execution_unlock(execution);
}

EXPORT uint64_t sim_clock_read(void)
{
    uint64_t now_ns = sim_clock_now();
    clock_spend(READ_NS);
    return now_ns;
}

EXPORT uint64_t sim_clock_now(void)
{
    return my_base_ns + my_lead_ns;
}

EXPORT void sim_clock_sleep_until(uint64_t ns)
{
    struct execution *execution = my_row ? execution_lock() : NULL;
    if (!execution)
        return;
    sleep_until(execution, ns);
    execution_unlock(execution);
}

void clock_leave(void)
{
    struct execution *execution = atomic_load(&joined) ? execution_lock() : NULL;
    if (!execution)
        return;
    for (uint32_t i = 0; i < execution->thread_high; i++)
        if (execution->threads[i].state != THREAD_FREE && execution->threads[i].pid == execution_pid())
            drop(execution, i);
    my_row = 0;
    execution_unlock(execution);
}

void clock_forget_parent(void)
{
    my_row = 0;
    atomic_store(&joined, false);
}
