#include "execution_state.h"

#include "../process.h"
#include "clock.h"
#include "engine.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LOOK_NS = 10 * 1000 * 1000 }; /* between two looks for processes that died */

#define CONTEXT_ENDED UINT64_MAX /* and its work may not be done yet */

static pthread_mutex_t map_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t fork_once = PTHREAD_ONCE_INIT;
static struct execution *_Atomic mapped;
static const char *_Atomic mapped_for; /* the configuration */
static _Atomic uint32_t my_pid; /* 0: not known yet, also after a fork */
static uint64_t my_start_time;
static uint64_t my_lanes[MAX_LANES]; /* what each that is ours is of: the context + 1, or CONTEXT_ENDED */

/* --- the file ------------------------------------------------------------------------------------------- */

static void forget_parent(void)
{
    my_pid = 0;
    memset(my_lanes, 0, sizeof my_lanes);
    pthread_mutex_init(&map_lock, NULL);
    clock_forget_parent();
}

static void watch_forks(void)
{
    pthread_atfork(NULL, NULL, forget_parent);
}

static bool begin_state(struct execution *execution)
{
    pthread_mutexattr_t attributes;
    const struct sim_node *node = sim_node_acquire();
    bool good = pthread_mutexattr_init(&attributes) == 0
        && pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED) == 0
        && pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST) == 0
        && pthread_mutex_init(&execution->lock, &attributes) == 0;
    execution->virtual_clock = node && sim_node_virtual_clock(node);
    execution->slice_ns = 1000ULL * (node ? node->slice_us : 1);
    execution->now_ns = execution->virtual_clock ? VIRTUAL_START_NS : clock_real_ns();
    execution->connections = node ? node->connections : 0;
    execution->running_thread = NOTHING;
    execution->bytes = sizeof *execution;
    sim_node_release(node);
    if (good)
        execution->version = EXECUTION_VERSION;
    return good;
}

static struct execution *map_file(int fd)
{
    struct stat status;
    if (flock(fd, LOCK_EX) != 0 || fstat(fd, &status) != 0
        || (status.st_size == 0 && ftruncate(fd, sizeof(struct execution)) != 0)
        || (status.st_size != 0 && status.st_size != (off_t)sizeof(struct execution)))
        return NULL;
    struct execution *fresh = mmap(NULL, sizeof *fresh, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (fresh == MAP_FAILED)
        return NULL;
    if (fresh->version == EXECUTION_VERSION || (fresh->version == 0 && begin_state(fresh)))
        return fresh;
    munmap(fresh, sizeof *fresh);
    return NULL;
}

/* Called with map_lock held. */
static struct execution *map_state(const char *configuration)
{
    char path[SIM_PATH_BYTES];
    if (!configuration || snprintf(path, sizeof path, "%s.gpu", configuration) >= (int)sizeof path)
        return NULL;
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (fd < 0)
        return NULL;
    struct execution *fresh = map_file(fd);
    flock(fd, LOCK_UN); /* the mapping keeps the open file, and so would keep the lock */
    close(fd);
    if (!fresh)
        return NULL;
    pthread_once(&fork_once, watch_forks);
    memset(my_lanes, 0, sizeof my_lanes); /* the old state stays mapped: somebody may be waiting in it */
    mapped_for = configuration;
    atomic_store(&mapped, fresh);
    return fresh;
}

static struct execution *state(void)
{
    struct execution *execution = atomic_load_explicit(&mapped, memory_order_acquire);
    if (execution && my_pid && mapped_for == sim_node_path())
        return execution;
    pthread_mutex_lock(&map_lock);
    execution = atomic_load(&mapped); /* another thread may have been faster */
    if (!execution || mapped_for != sim_node_path())
        execution = map_state(sim_node_path());
    if (!my_pid) {
        my_start_time = process_start_time(getpid());
        my_pid = (uint32_t)getpid();
    }
    pthread_mutex_unlock(&map_lock);
    return execution;
}

struct execution *execution_lock(void)
{
    struct execution *execution = state();
    if (!execution)
        return NULL;
    int answer = pthread_mutex_lock(&execution->lock);
    if (answer == EOWNERDEAD) /* it died between two steps, each of which leaves the lists whole */
        answer = pthread_mutex_consistent(&execution->lock);
    return answer == 0 ? execution : NULL;
}

void execution_unlock(struct execution *execution)
{
    pthread_mutex_unlock(&execution->lock);
}

uint32_t execution_pid(void)
{
    return my_pid;
}

uint64_t execution_start_time(void)
{
    return my_start_time;
}

/* --- lanes ---------------------------------------------------------------------------------------------- */

static void end_the_dead(struct execution *execution, struct gpu_row *gpu, bool idle_too)
{
    for (uint32_t place = gpu->lane_count; place-- > 0;) {
        const struct lane_row *lane = &execution->lanes[gpu->lanes[place]];
        if ((lane->pending || idle_too) && lane->pid != my_pid
            && process_gone((int32_t)lane->pid, lane->start_time))
            engine_end_lane(execution, gpu->lanes[place]);
    }
}

void execution_end_the_dead(struct execution *execution)
{
    for (size_t i = 0; i < MAX_GPUS && execution->gpus[i].uuid[0]; i++)
        end_the_dead(execution, &execution->gpus[i], true);
}

void execution_catch_up(struct execution *execution)
{
    if (execution->virtual_clock)
        return; /* the clock does it */
    uint64_t now_ns = clock_real_ns();
    if (now_ns - execution->looked_ns > LOOK_NS) {
        execution->looked_ns = now_ns;
        for (size_t i = 0; i < MAX_GPUS && execution->gpus[i].uuid[0]; i++)
            end_the_dead(execution, &execution->gpus[i], false);
    }
    engine_advance(execution, now_ns, false);
}

uint32_t execution_gpu(struct execution *execution, const char *uuid, bool add)
{
    for (uint32_t i = 0; i < MAX_GPUS; i++) {
        struct gpu_row *gpu = &execution->gpus[i];
        if (strncmp(gpu->uuid, uuid, TEXT_BYTES) == 0)
            return i;
        if (!gpu->uuid[0]) {
            if (add)
                snprintf(gpu->uuid, TEXT_BYTES, "%s", uuid);
            return add ? i : NOTHING;
        }
    }
    return NOTHING;
}

/* A free row, or the one that was over first. */
static uint32_t vacant_lane(struct execution *execution)
{
    uint32_t oldest = NOTHING;
    for (uint32_t i = 0; i < MAX_LANES; i++) {
        if (execution->lanes[i].state == LANE_FREE)
            return i;
        if (execution->lanes[i].state == LANE_ENDED
            && (oldest == NOTHING || execution->lanes[i].order < execution->lanes[oldest].order))
            oldest = i;
    }
    return oldest;
}

/* Lanes of contexts that are over end when their work is done. */
static void end_the_idle(struct execution *execution, struct gpu_row *gpu)
{
    for (uint32_t place = gpu->lane_count; place-- > 0;) {
        uint32_t lane = gpu->lanes[place];
        if (my_lanes[lane] == CONTEXT_ENDED && !execution->lanes[lane].pending) {
            engine_end_lane(execution, lane);
            my_lanes[lane] = 0;
        }
    }
}

static uint32_t claim_lane(struct execution *execution, uint32_t place, uint64_t context)
{
    struct gpu_row *gpu = &execution->gpus[place];
    end_the_idle(execution, gpu);
    if (gpu->lane_count == MAX_LIVE_LANES)
        end_the_dead(execution, gpu, true);
    uint32_t lane = gpu->lane_count < MAX_LIVE_LANES ? vacant_lane(execution) : NOTHING;
    if (lane == NOTHING)
        return NOTHING;
    execution->lanes[lane] = (struct lane_row){
        .pid = my_pid, .start_time = my_start_time, .gpu = place, .streams = NOTHING, .state = LANE_LIVE};
    gpu->lanes[gpu->lane_count++] = lane;
    my_lanes[lane] = context + 1;
    return lane;
}

uint32_t execution_lane(struct execution *execution, const char *uuid, uint64_t context, bool add)
{
    uint32_t place = execution_gpu(execution, uuid, add);
    if (place == NOTHING)
        return NOTHING;
    const struct gpu_row *gpu = &execution->gpus[place];
    for (uint32_t i = 0; i < gpu->lane_count; i++)
        if (my_lanes[gpu->lanes[i]] == context + 1)
            return gpu->lanes[i];
    return add ? claim_lane(execution, place, context) : NOTHING;
}

void execution_end_context(const char *uuid, uint64_t context)
{
    struct execution *execution = execution_lock();
    if (!execution)
        return;
    execution_catch_up(execution);
    uint32_t lane = execution_lane(execution, uuid, context, false);
    if (lane != NOTHING) {
        my_lanes[lane] = CONTEXT_ENDED;
        end_the_idle(execution, &execution->gpus[execution->lanes[lane].gpu]);
    }
    execution_unlock(execution);
}

bool execution_owns(const struct execution *execution, uint32_t lane)
{
    return lane < MAX_LANES && my_lanes[lane] && execution->lanes[lane].state == LANE_LIVE;
}

__attribute__((destructor)) static void leave(void)
{
    if (!atomic_load(&mapped) || !my_pid || my_pid != (uint32_t)getpid())
        return;
    clock_leave();
    struct execution *execution = execution_lock();
    if (!execution)
        return;
    execution_catch_up(execution);
    for (uint32_t lane = 0; lane < MAX_LANES; lane++)
        if (my_lanes[lane])
            engine_end_lane(execution, lane);
    memset(my_lanes, 0, sizeof my_lanes);
    execution_unlock(execution);
}
