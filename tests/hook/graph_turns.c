/* Launches, frees and trims of graphs by threads that take turns: whenever one has let go of a lock or calls
 * the driver, another may go on, by a seed. The driver is a model of one that reserves in steps.
 *
 *     graph_turns SEED ROUNDS
 *
 * Prints how many launches were made; how many MiB at most the driver had and nobody was charged for; and how
 * many at most were charged with nothing under way, and the driver did not have.
 */
#include "graph_launches.h"
#include "monotonic.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <ucontext.h>

static int held;
static void others(void);
static uint64_t now_ns;
static uint64_t model_ns(void)
{
    return now_ns;
}
#define monotonic_ns model_ns
static int locked(pthread_mutex_t *lock)
{
    held++;
    return pthread_mutex_lock(lock);
}
static int unlocked(pthread_mutex_t *lock)
{
    int result = pthread_mutex_unlock(lock);
    held--;
    others();
    return result;
}
#define pthread_mutex_lock locked
#define pthread_mutex_unlock unlocked
#define learn reserve_learn
#define taken reserve_taken
#include "reserve.c"
#undef learn
#undef taken
#define lock launches_lock
#include "graph_launches.c"
#undef lock
#include "graphs.c"

enum { MIB = 1 << 20, LIMIT_MIB = 100, STEP_MIB = 32, GRAPHS = 8, PLACE = 0 };

/* --- the budget, and what is not of this test ------------------------------------------------------------ */

static uint64_t charged, reserved, in_use, most_uncharged, most_unused;
static struct real_cuda functions;
_Atomic(const void *) real_known[DRIVERS] = {&functions};
atomic_bool real_cuda_settled;
const void *real_search(enum driver driver, bool load) { (void)driver; (void)load; return NULL; }
bool charging(void) { return true; }
int place_of_device(CUdevice device) { return device; }
bool charge_at_once(int place, enum charge_kind kind, uint64_t bytes, uint64_t calls)
{
    (void)place, (void)kind, (void)calls;
    bool fits = charged + bytes <= (uint64_t)LIMIT_MIB * MIB;
    charged += fits ? bytes : 0;
    return fits;
}
void charge_from_the_dead(void) { }
CUresult charge_refused(int place, uint64_t bytes, const char *function)
{
    (void)place, (void)bytes, (void)function;
    return CUDA_ERROR_OUT_OF_MEMORY;
}
void charge_anyway(int place, enum charge_kind kind, uint64_t bytes) { (void)place, (void)kind; charged += bytes; }
void charge_back(int place, enum charge_kind kind, uint64_t bytes, uint64_t calls)
{
    (void)place, (void)kind, (void)calls;
    charged -= bytes;
}
void looks_call_begins(int place) { (void)place; }
void looks_call_ended(int place) { (void)place; }
uint64_t limits_memory_bytes(int place) { (void)place; return (uint64_t)LIMIT_MIB * MIB; }
bool reclaimable(int place, uint64_t bytes) { (void)bytes; return graph_memory_idle_bytes(place); }
void reclaim(int place) { graph_memory_trim(place); }
uint64_t gpu_time_stream(CUstream stream, bool per_thread) { (void)per_thread; return (uintptr_t)stream; }
static uint64_t now_ns;
void monotonic_sleep_until(uint64_t ns) { now_ns = ns + UINT64_C(60000000); others(); }

/* --- the driver ------------------------------------------------------------------------------------------ */

static struct model {
    uint64_t left, freed; /* to the program, and by the graph itself: MiB */
    bool refused; /* where the former is there, and not freed */
    bool live;
} models[GRAPHS] = {{.left = 10}, {.left = 20}, {.left = 33}, {.left = 31}, {.left = 50},
                    {.freed = 40}, {.left = 15, .freed = 25}, {.left = 12, .refused = true}};

static uint64_t steps(uint64_t bytes)
{
    return (bytes + STEP_MIB * MIB - 1) / (STEP_MIB * MIB) * (STEP_MIB * MIB);
}

static bool let_go(struct model *model)
{
    bool live = model->live;
    in_use -= live ? model->left * MIB : 0;
    model->live = false;
    return live;
}

static CUresult run(struct model *model)
{
    if (model->refused && model->live)
        return CUDA_ERROR_INVALID_VALUE;
    let_go(model);
    in_use += model->left * MIB;
    model->live = model->left;
    if (reserved < steps(in_use + model->freed * MIB))
        reserved = steps(in_use + model->freed * MIB);
    if (reserved > charged && reserved - charged > most_uncharged)
        most_uncharged = reserved - charged;
    return CUDA_SUCCESS;
}

static CUresult tell(CUdevice device, CUgraphMem_attribute attribute, void *value)
{
    (void)device, (void)attribute;
    others();
    *(cuuint64_t *)value = reserved;
    others();
    return CUDA_SUCCESS;
}

static CUresult trim(CUdevice device)
{
    (void)device;
    others();
    reserved = steps(in_use);
    others();
    return CUDA_SUCCESS;
}

static CUresult no_capture(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph,
                           const CUgraphNode **dependencies, size_t *count)
{
    (void)stream, (void)id, (void)graph, (void)dependencies, (void)count;
    *status = CAPTURE_NONE;
    return CUDA_SUCCESS;
}

/* --- the program ----------------------------------------------------------------------------------------- */

enum { THREADS = 5, CALLS = 20, STACK_BYTES = 1 << 16 };
static struct {
    ucontext_t context;
    int depth;
    bool over;
    char stack[STACK_BYTES];
} threads[THREADS];
static ucontext_t round_over;
static int at = -1; /* -1: none runs */
static unsigned seed, seldom, launched;
#define LEAVES(i) ((CUgraphExec)(uintptr_t)(0x1000 + 16 * (i)))
#define FREES(i) ((CUgraphExec)(uintptr_t)(0x2000 + 16 * (i)))
#define ADDRESS(i) ((CUdeviceptr)(0x100000 * ((i) + 1)))

static void launch(CUgraphExec exec, int i, bool frees, bool runs)
{
    struct graph_launch memory;
    CUstream stream = (CUstream)(uintptr_t)(at + 1);
    if (graph_memory_before_launch(&memory, exec, stream, false, runs, "cuGraphLaunch") != CUDA_SUCCESS)
        return;
    others();
    CUresult result = !runs ? CUDA_SUCCESS
        : !frees           ? run(&models[i])
        : let_go(&models[i]) ? CUDA_SUCCESS
                           : CUDA_ERROR_INVALID_VALUE;
    launched += runs && !frees && result == CUDA_SUCCESS;
    others();
    graph_memory_after_launch(&memory, result);
}

static void call(void)
{
    int i = rand_r(&seed) % GRAPHS;
    switch (rand_r(&seed) % 10) {
    case 0: {
        graph_freeing(ADDRESS(i));
        others();
        bool freed = let_go(&models[i]);
        others();
        graph_freed(NULL, ADDRESS(i), freed);
        break;
    }
    case 1:
        launch(FREES(i), i, true, true);
        break;
    case 2:
        launch(LEAVES(i), i, false, false);
        break;
    case 3:
        graph_memory_trims(true);
        trim(0);
        graph_memory_trims(false);
        graph_memory_true_up(0);
        break;
    default:
        launch(LEAVES(i), i, false, true);
    }
}

static void turn_to(int next)
{
    int before = at;
    threads[before].depth = depth_of_thread;
    at = next;
    depth_of_thread = threads[next].depth;
    swapcontext(&threads[before].context, &threads[next].context);
}

static void others(void)
{
    if (held || at < 0)
        return;
    int next = rand_r(&seed) % (THREADS * seldom);
    if (next < THREADS && next != at && !threads[next].over)
        turn_to(next);
}

static void work(void)
{
    for (int i = 0; i < CALLS; i++)
        call();
    threads[at].over = true;
    for (int i = 0; i < THREADS; i++)
        if (!threads[i].over)
            turn_to(i);
}

/* One round of all threads: ends with nothing under way. */
static void round_of_calls(void)
{
    for (int i = 0; i < THREADS; i++) {
        getcontext(&threads[i].context);
        threads[i].context.uc_stack.ss_sp = threads[i].stack;
        threads[i].context.uc_stack.ss_size = STACK_BYTES;
        threads[i].context.uc_link = &round_over;
        threads[i].over = false;
        threads[i].depth = 0;
        makecontext(&threads[i].context, work, 0);
    }
    seldom = 1 + rand_r(&seed) % 8;
    at = 0;
    depth_of_thread = 0;
    swapcontext(&round_over, &threads[0].context);
    at = -1;
    if (charged > reserved && charged - reserved > most_unused)
        most_unused = charged - reserved;
}

int main(int count, char **words)
{
    seed = count == 3 ? (unsigned)atoi(words[1]) : 0;
    functions.cuDeviceGetGraphMemAttribute = tell;
    functions.cuDeviceGraphMemTrim = trim;
    functions.cuStreamGetCaptureInfo_v2 = no_capture;
    for (int i = 0; i < GRAPHS; i++) {
        CUgraph leaves = (CUgraph)(uintptr_t)(0x3000 + 16 * i), frees = (CUgraph)(uintptr_t)(0x4000 + 16 * i);
        if (models[i].left)
            graph_allocates(leaves, PLACE, models[i].left * MIB, ADDRESS(i), false);
        if (models[i].freed) {
            graph_allocates(leaves, PLACE, models[i].freed * MIB, ADDRESS(i) + 16, false);
            graph_frees(leaves, ADDRESS(i) + 16);
        }
        graph_frees(frees, ADDRESS(i));
        graph_instantiated(LEAVES(i), leaves);
        graph_instantiated(FREES(i), frees);
    }
    for (int i = count == 3 ? atoi(words[2]) : 0; i > 0; i--)
        round_of_calls();
    printf("%u %llu %llu\n", launched, (unsigned long long)most_uncharged / MIB,
           (unsigned long long)most_unused / MIB);
    return 0;
}
