/* A program that keeps a GPU busy in a chosen way, and says what the GPU really did for it.
 *
 *   sim-gpu-tenant [--virtual PROCESSES RANK] [--window-ms N] [--threads N] [--device N] [--quota ON PERIOD]
 *                  PHASE...
 *
 * A phase is a list such as ms=1000,kernel=short+long,sync=1 of
 *
 *   ms=N        how long it lasts (default 1000)
 *   kernel=A+B  functions to launch, in turn (default "kernel"); none: do nothing
 *   by=WAY      kernel (default), ex, cooperative, graph
 *   nodes=N     kernels in a graph (default 10)
 *   streams=N   streams per thread, used in turn (default 1; 0: the default stream)
 *   stay=N      launches on one of them before the next (default 1)
 *   shared=1    all threads have the same ones
 *   blocking=1  streams that wait for the legacy stream, and it for them
 *   legacy=N    launch on the legacy stream instead, one of every N launches of all threads
 *   urgent=1    they have the greatest priority
 *   handle=N    launch on the stream of this handle instead: 1 the legacy stream, 2 the thread's own
 *   sync=N      wait for the stream after every N launches (default 0: never)
 *   burst=N     launches in a burst (default 0: without end), then wait for them and sleep
 *   idle_us=N   for so long (default 0)
 *   shapes=N    grids of so many sizes, in turn (default 1); not with graphs or cooperative launches
 *   rare=N      one of every N launches is of the last function, the others are of those before it in turn
 *   fresh=N     and its grid is another one after every N of them
 *   contexts=N  threads have so many contexts, in turn (default 1): the primary one, others made for it
 *   kill=1      the process kills itself when the phase is over
 *   thread=N    only the Nth thread has this phase, counted from 1 (default 0: all have it); the others go on
 *               with their next one
 *
 * At its end it prints one line: {"pid","result","launches","launches_of_threads":[...],"wall_ns","gpu_ns",
 * "windows_ns":[...]}. gpu_ns is
 * what the simulated GPU worked for this process from the first phase to the end of the last, windows_ns the
 * same for each window in between, whose ends are the multiples of its length; "result" is the first
 * CUresult that was not 0. With --virtual it takes part in the virtual clock; with --quota its
 * threads run for ON of each PERIOD ms of that.
 */
#include "../cuda_abi.h"
#include "sim_gpu_phase.h"
#include "virtual_time.h"

#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { MAX_PHASES = 32, MAX_WINDOWS = 4096, MAX_WORKERS = 64, EXIT_NO_CUDA = 3 };

#define FUNCTIONS(X)                                                                                         \
    X(cuInit)                                                                                                \
    X(cuDeviceGetUuid)                                                                                       \
    X(cuDevicePrimaryCtxRetain)                                                                              \
    X(cuCtxCreate_v2)                                                                                        \
    X(cuCtxSetCurrent)                                                                                       \
    X(cuCtxSynchronize)                                                                                      \
    X(cuModuleLoadData)                                                                                      \
    X(cuModuleGetFunction)                                                                                   \
    X(cuStreamCreateWithPriority)                                                                            \
    X(cuStreamCreate)                                                                                        \
    X(cuCtxGetStreamPriorityRange)                                                                           \
    X(cuStreamSynchronize)                                                                                   \
    X(cuStreamDestroy_v2)                                                                                    \
    X(cuLaunchKernel)                                                                                        \
    X(cuLaunchKernelEx)                                                                                      \
    X(cuLaunchCooperativeKernel)                                                                             \
    X(cuStreamBeginCapture_v2)                                                                               \
    X(cuStreamEndCapture)                                                                                    \
    X(cuGraphInstantiateWithFlags)                                                                           \
    X(cuGraphExecDestroy)                                                                                    \
    X(cuGraphDestroy)                                                                                        \
    X(cuGraphLaunch)

static struct {
#define X(name) __typeof__(&name) name;
    FUNCTIONS(X)
#undef X
    uint64_t (*gpu_time)(const char *uuid, uint32_t pid);
} cuda;

static struct phase phases[MAX_PHASES];
static size_t phase_count;
static unsigned long threads = 1, window_ms, processes, rank, device, on_ms, period_ms;
static struct {
    CUcontext context;
    CUmodule module;
} contexts[MAX_CONTEXTS]; /* the first is the primary one; others are made when first used */
static pthread_mutex_t contexts_lock = PTHREAD_MUTEX_INITIALIZER;
static char uuid_text[64];
static _Atomic uint64_t launches_of[MAX_WORKERS];
static _Atomic unsigned long launched; /* those about to be made, too, where one in so many is another */
static _Atomic int first_result;
static _Atomic bool over;
static uint64_t windows_ns[MAX_WINDOWS];
static size_t window_count;

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

static void sleep_until(uint64_t ns)
{
    struct timespec until = {.tv_sec = (time_t)(ns / 1000000000), .tv_nsec = (long)(ns % 1000000000)};
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL);
}

static uint64_t gpu_ns(void)
{
    return cuda.gpu_time(uuid_text, (uint32_t)getpid());
}

static bool good(CUresult result)
{
    int none = 0;
    if (result != CUDA_SUCCESS)
        atomic_compare_exchange_strong(&first_result, &none, result);
    return result == CUDA_SUCCESS;
}

/* --- one thread's work ---------------------------------------------------------------------------------- */

static _Atomic(CUstream) streams[MAX_OWN_STREAMS]; /* of all threads */

struct worker {
    const struct phase *phase;
    unsigned long thread;
    CUmodule module;
    CUfunction functions[MAX_MIX];
    CUstream streams[MAX_OWN_STREAMS];
    CUgraphExec graph;
    unsigned long turn;
};

static CUfunction next_function(const struct worker *worker, unsigned *grid)
{
    const struct phase *phase = worker->phase;
    unsigned long last = phase->mix_count - 1, turn = worker->turn;
    *grid = 1 + (unsigned)(turn % phase->shapes);
    if (!phase->rare)
        return worker->functions[turn % phase->mix_count];
    if ((turn + 1) % phase->rare)
        return worker->functions[turn % last];
    *grid = 1 + (unsigned)(phase->fresh ? turn / phase->rare / phase->fresh : 0);
    return worker->functions[last];
}

static CUresult launch_on(const struct worker *worker, enum way way, CUstream stream)
{
    unsigned grid;
    CUfunction function = next_function(worker, &grid);
    CUlaunchConfig config = {.gridDimX = grid,
                             .gridDimY = 1,
                             .gridDimZ = 1,
                             .blockDimX = 32,
                             .blockDimY = 1,
                             .blockDimZ = 1,
                             .hStream = stream};
    switch (way) {
    case BY_EX:
        return cuda.cuLaunchKernelEx(&config, function, NULL, NULL);
    case BY_COOPERATIVE:
        return cuda.cuLaunchCooperativeKernel(function, 1, 1, 1, 32, 1, 1, 0, stream, NULL);
    case BY_GRAPH:
        return cuda.cuGraphLaunch(worker->graph, stream);
    case BY_KERNEL:
        break;
    }
    return cuda.cuLaunchKernel(function, grid, 1, 1, 32, 1, 1, 0, stream, NULL, NULL);
}

static bool make_graph(struct worker *worker)
{
    CUgraph graph = NULL;
    bool done = good(cuda.cuStreamBeginCapture_v2(worker->streams[0], 1));
    for (unsigned long i = 0; done && i < worker->phase->nodes; i++, worker->turn++)
        done = good(launch_on(worker, BY_KERNEL, worker->streams[0]));
    return done && good(cuda.cuStreamEndCapture(worker->streams[0], &graph))
        && good(cuda.cuGraphInstantiateWithFlags(&worker->graph, graph, 0))
        && good(cuda.cuGraphDestroy(graph));
}

/* Of the threads' contexts the one with this number. */
static bool enter(struct worker *worker, unsigned long number)
{
    pthread_mutex_lock(&contexts_lock);
    CUcontext *context = &contexts[number].context;
    bool done = *context ? good(cuda.cuCtxSetCurrent(*context))
                         : good(cuda.cuCtxCreate_v2(context, 0, (int)device))
            && good(cuda.cuModuleLoadData(&contexts[number].module, "image"));
    worker->module = contexts[number].module;
    pthread_mutex_unlock(&contexts_lock);
    return done;
}

static bool prepare(struct worker *worker)
{
    const struct phase *phase = worker->phase;
    int priority = 0;
    bool done = enter(worker, worker->thread % phase->contexts)
        && (!phase->urgent || good(cuda.cuCtxGetStreamPriorityRange(NULL, &priority)));
    for (size_t i = 0; done && i < phase->mix_count; i++)
        done = good(cuda.cuModuleGetFunction(&worker->functions[i], worker->module, phase->mix[i]));
    for (unsigned long i = 0; done && i < phase->streams; i++) {
        CUstream common = NULL;
        done = phase->urgent
            ? good(cuda.cuStreamCreateWithPriority(&worker->streams[i], !phase->blocking, priority))
            : good(cuda.cuStreamCreate(&worker->streams[i], !phase->blocking));
        if (phase->shared && done
            && !atomic_compare_exchange_strong(&streams[i], &common, worker->streams[i])) {
            done = good(cuda.cuStreamDestroy_v2(worker->streams[i]));
            worker->streams[i] = common;
        }
    }
    return done && (phase->way != BY_GRAPH || make_graph(worker));
}

static void clean_up(struct worker *worker)
{
    for (unsigned long i = 0; i < worker->phase->streams; i++)
        if (worker->streams[i] && !worker->phase->shared)
            cuda.cuStreamDestroy_v2(worker->streams[i]);
    if (worker->graph)
        cuda.cuGraphExecDestroy(worker->graph);
}

static bool launch_until(struct worker *worker, uint64_t end_ns)
{
    const struct phase *phase = worker->phase;
    unsigned long done = 0;
    while (now_ns() < end_ns) {
        CUstream stream = phase->handle ? (CUstream)phase->handle
            : phase->streams            ? worker->streams[worker->turn / phase->stay % phase->streams]
                                        : NULL;
        if (phase->legacy && atomic_fetch_add(&launched, 1) % phase->legacy == 0)
            stream = NULL;
        if (!good(launch_on(worker, phase->way, stream)))
            return false;
        worker->turn++;
        done++;
        atomic_fetch_add(&launches_of[worker->thread], 1);
        if (phase->sync && done % phase->sync == 0 && !good(cuda.cuStreamSynchronize(stream)))
            return false;
        if (phase->burst && done % phase->burst == 0) {
            if (!good(cuda.cuCtxSynchronize()))
                return false;
            uint64_t until_ns = now_ns() + phase->idle_us * 1000ULL;
            sleep_until(until_ns < end_ns ? until_ns : end_ns);
        }
    }
    return true;
}

static uint64_t start_ns;

static void *work(void *number)
{
    uint64_t end_ns = start_ns;
    unsigned long thread = (unsigned long)(uintptr_t)number;
    bool going_on = true;
    for (size_t i = 0; going_on && i < phase_count; i++) {
        struct worker worker = {.phase = &phases[i], .thread = thread};
        if (phases[i].thread && phases[i].thread != thread + 1)
            continue;
        end_ns += phases[i].ms * 1000000ULL;
        if (phases[i].mix_count)
            going_on = prepare(&worker) && launch_until(&worker, end_ns);
        sleep_until(end_ns);
        if (phases[i].kill)
            raise(SIGKILL);
        clean_up(&worker);
    }
    return NULL;
}

static void *look(void *unused)
{
    (void)unused;
    uint64_t step_ns = window_ms * 1000000ULL;
    uint64_t before_ns = gpu_ns();
    for (uint64_t end_ns = now_ns() / step_ns * step_ns + step_ns; window_count < MAX_WINDOWS;
         end_ns += step_ns) {
        sleep_until(end_ns);
        if (atomic_load(&over))
            break;
        uint64_t after_ns = gpu_ns();
        windows_ns[window_count++] = after_ns - before_ns;
        before_ns = after_ns;
    }
    return NULL;
}

/* --- arguments ------------------------------------------------------------------------------------------ */

static bool take_arguments(int count, char **words)
{
    for (int i = 1; i < count; i++) {
        unsigned long *first = NULL, *second = NULL;
        if (strcmp(words[i], "--virtual") == 0)
            first = &processes, second = &rank;
        else if (strcmp(words[i], "--window-ms") == 0)
            first = &window_ms;
        else if (strcmp(words[i], "--threads") == 0)
            first = &threads;
        else if (strcmp(words[i], "--device") == 0)
            first = &device;
        else if (strcmp(words[i], "--quota") == 0)
            first = &on_ms, second = &period_ms;
        else if (phase_count == MAX_PHASES || !phase_take(&phases[phase_count++], words[i]))
            return false;
        if (first && i + 1 + (second != NULL) >= count)
            return false;
        if (first)
            *first = strtoul(words[++i], NULL, 10);
        if (second)
            *second = strtoul(words[++i], NULL, 10);
    }
    return phase_count > 0 && threads > 0 && threads <= MAX_WORKERS;
}

/* --- beginning and end ---------------------------------------------------------------------------------- */

static const char *load_cuda(void **library)
{
    *library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!*library)
        return "libcuda.so.1 is not there";
#define X(name)                                                                                              \
    *(void **)&cuda.name = dlsym(*library, #name);                                                           \
    if (!cuda.name)                                                                                          \
        return "libcuda.so.1 lacks " #name;
    FUNCTIONS(X)
#undef X
    *(void **)&cuda.gpu_time = dlsym(*library, "sim_gpu_time");
    return cuda.gpu_time ? NULL : "libcuda.so.1 is not the simulated one";
}

static bool start_cuda(void)
{
    CUuuid uuid = {{0}};
    bool done = good(cuda.cuInit(0)) && good(cuda.cuDevicePrimaryCtxRetain(&contexts[0].context, (int)device))
        && good(cuda.cuCtxSetCurrent(contexts[0].context))
        && good(cuda.cuModuleLoadData(&contexts[0].module, "image"))
        && good(cuda.cuDeviceGetUuid(&uuid, (int)device));
    int length = snprintf(uuid_text, sizeof uuid_text, "GPU-");
    for (int i = 0; i < 16; i++)
        length += snprintf(uuid_text + length, sizeof uuid_text - (size_t)length, "%s%02x",
                           i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", uuid.bytes[i]);
    return done;
}

static void report(uint64_t wall_ns, uint64_t worked_ns)
{
    unsigned long long launches = 0;
    for (unsigned long i = 0; i < threads; i++)
        launches += launches_of[i];
    printf("{\"pid\":%d,\"result\":%d,\"launches\":%llu,\"launches_of_threads\":[", (int)getpid(),
           atomic_load(&first_result), launches);
    for (unsigned long i = 0; i < threads; i++)
        printf("%s%llu", i ? "," : "", (unsigned long long)launches_of[i]);
    printf("],\"wall_ns\":%llu,\"gpu_ns\":%llu,\"windows_ns\":[", (unsigned long long)wall_ns,
           (unsigned long long)worked_ns);
    for (size_t i = 0; i < window_count; i++)
        printf("%s%llu", i ? "," : "", (unsigned long long)windows_ns[i]);
    printf("]}\n");
    fflush(stdout);
}

static void run(void)
{
    pthread_t workers[MAX_WORKERS], looker;
    start_ns = now_ns();
    uint64_t before_ns = gpu_ns();
    bool looks = window_ms && pthread_create(&looker, NULL, look, NULL) == 0;
    unsigned long started = 1;
    while (started < threads
           && pthread_create(&workers[started], NULL, work, (void *)(uintptr_t)started) == 0)
        started++;
    work(NULL);
    uint64_t worked_ns = gpu_ns() - before_ns, wall_ns = now_ns() - start_ns;
    for (unsigned long i = 1; i < started; i++)
        pthread_join(workers[i], NULL);
    atomic_store(&over, true);
    if (looks)
        pthread_join(looker, NULL);
    good(cuda.cuCtxSynchronize());
    report(wall_ns, worked_ns);
}

int main(int count, char **words)
{
    void *library;
    if (!take_arguments(count, words)) {
        fprintf(
            stderr,
            "usage: sim-gpu-tenant [--virtual PROCESSES RANK] [--window-ms N] [--threads N] "
            "[--device N] [--quota ON PERIOD] "
            "ms=N,kernel=A+B,by=WAY,nodes=N,streams=N,stay=N,shared=N,blocking=N,legacy=N,urgent=N,handle=N,"
            "sync=N,burst=N,idle_us=N,contexts=N,thread=N ...\n");
        return 2;
    }
    const char *missing = load_cuda(&library);
    if (missing) {
        fprintf(stderr, "sim-gpu-tenant: %s\n", missing);
        return EXIT_NO_CUDA;
    }
    if (processes) {
        if (!virtual_time_join(library, (unsigned)processes, (unsigned)rank)) {
            fprintf(stderr, "sim-gpu-tenant: the simulated driver's clock is not virtual\n");
            return EXIT_NO_CUDA;
        }
        virtual_time_quota(on_ms * 1000000ULL, period_ms * 1000000ULL);
    }
    if (start_cuda())
        run();
    else
        report(0, 0);
    return atomic_load(&first_result) ? 1 : 0;
}
