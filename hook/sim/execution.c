#include "execution.h"

#include "../process.h"
#include "clock.h"
#include "engine.h"
#include "gpu_time.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LOOK_NS = 10 * 1000 * 1000 }; /* between two looks for processes that died */

static pthread_mutex_t map_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t fork_once = PTHREAD_ONCE_INIT;
static struct execution *_Atomic mapped;
static const char *mapped_for; /* the configuration */
static uint32_t my_pid; /* 0: not known yet, also after a fork */
static uint64_t my_start_time;
static uint32_t my_lanes[MAX_GPUS]; /* lane + 1; by gpu row */

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
    char path[4096];
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

/* Bring the state up to the present. */
static void catch_up(struct execution *execution)
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

static uint32_t gpu_place(struct execution *execution, const char *uuid, bool add)
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

static uint32_t claim_lane(struct execution *execution, uint32_t place)
{
    struct gpu_row *gpu = &execution->gpus[place];
    if (gpu->lane_count == MAX_LIVE_LANES)
        end_the_dead(execution, gpu, true);
    uint32_t lane = gpu->lane_count < MAX_LIVE_LANES ? vacant_lane(execution) : NOTHING;
    if (lane == NOTHING)
        return NOTHING;
    execution->lanes[lane] = (struct lane_row){
        .pid = my_pid, .start_time = my_start_time, .gpu = place, .streams = NOTHING, .state = LANE_LIVE};
    gpu->lanes[gpu->lane_count++] = lane;
    my_lanes[place] = lane + 1;
    return lane;
}

static uint32_t my_lane(struct execution *execution, const char *uuid, bool add)
{
    uint32_t place = gpu_place(execution, uuid, add);
    if (place == NOTHING)
        return NOTHING;
    if (my_lanes[place])
        return my_lanes[place] - 1;
    return add ? claim_lane(execution, place) : NOTHING;
}

/* The lane is this process's own: a forked child's handles of its parent are not. */
static bool mine(const struct execution *execution, uint32_t lane)
{
    return lane < MAX_LANES && my_lanes[execution->lanes[lane].gpu] == lane + 1;
}

__attribute__((destructor)) static void leave(void)
{
    if (!atomic_load(&mapped) || !my_pid || my_pid != (uint32_t)getpid())
        return;
    clock_leave();
    struct execution *execution = execution_lock();
    if (!execution)
        return;
    catch_up(execution);
    for (size_t i = 0; i < MAX_GPUS; i++)
        if (my_lanes[i])
            engine_end_lane(execution, my_lanes[i] - 1);
    memset(my_lanes, 0, sizeof my_lanes);
    execution_unlock(execution);
}

/* --- streams -------------------------------------------------------------------------------------------- */

static struct stream_row *stream_of(struct execution *execution, uint32_t stream)
{
    if (!stream || stream > MAX_STREAMS)
        return NULL;
    struct stream_row *row = &execution->streams[stream - 1];
    return row->flags & STREAM_IN_USE && mine(execution, row->lane) ? row : NULL;
}

/* Rows of closed streams whose work is done leave the list. */
static void collect(struct execution *execution, uint32_t lane)
{
    uint32_t *link = &execution->lanes[lane].streams;
    for (uint32_t bound = 0; *link < MAX_STREAMS && bound < MAX_STREAMS; bound++) {
        struct stream_row *row = &execution->streams[*link];
        if (row->flags & STREAM_CLOSING && row->head >= row->tail) {
            *link = row->next;
            row->flags = 0;
        } else {
            link = &row->next;
        }
    }
}

uint32_t execution_stream(const char *uuid, uint32_t flags)
{
    struct execution *execution = execution_lock();
    if (!execution)
        return 0;
    uint32_t lane = my_lane(execution, uuid, true);
    uint32_t stream = 0;
    if (lane != NOTHING) {
        catch_up(execution);
        collect(execution, lane);
    }
    for (uint32_t i = 0; lane != NOTHING && !stream && i < MAX_STREAMS; i++) {
        struct stream_row *row = &execution->streams[i];
        if (row->flags)
            continue;
        row->head = row->tail = 0;
        row->lane = lane;
        row->flags = flags | STREAM_IN_USE;
        row->next = execution->lanes[lane].streams;
        execution->lanes[lane].streams = i;
        stream = i + 1;
    }
    execution_unlock(execution);
    return stream;
}

void execution_close(uint32_t stream)
{
    struct execution *execution = execution_lock();
    if (!execution)
        return;
    struct stream_row *row = stream_of(execution, stream);
    if (row) {
        row->flags |= STREAM_CLOSING;
        catch_up(execution);
        collect(execution, row->lane);
    }
    execution_unlock(execution);
}

/* --- waiting -------------------------------------------------------------------------------------------- */

/* Called with the lock held, and leaves it held; lets go meanwhile. */
static void await(struct execution *execution, struct awaited awaited)
{
    catch_up(execution);
    while (!clock_reached(execution, &awaited)) {
        if (execution->virtual_clock) {
            clock_await(execution, &awaited);
        } else { /* it cannot be done sooner, but later if others take turns */
            uint64_t least_ns =
                awaited.stream ? engine_least_ns(execution, awaited.stream - 1, awaited.target) : 0;
            execution_unlock(execution);
            clock_real_sleep(least_ns);
            if (execution_lock() != execution)
                return;
        }
        catch_up(execution);
    }
}

static uint64_t push_item(uint32_t stream, struct item item, unsigned depth)
{
    struct execution *execution = execution_lock();
    if (!execution)
        return 0;
    struct stream_row *row = stream_of(execution, stream);
    uint64_t pushed = 0;
    if (row) {
        depth = depth < 1 ? 1 : depth > RING ? RING : depth;
        if (row->tail - row->head >= depth) /* go on when some room is there, as drivers do */
            await(execution,
                  (struct awaited){.stream = stream, .target = row->tail - depth + 1 + depth / 16});
        struct lane_row *lane = &execution->lanes[row->lane];
        item.arrival_ns = execution->virtual_clock ? clock_local_ns(execution) : clock_real_ns();
        item.order = lane->order++;
        if (!execution->virtual_clock && !lane->pending)
            catch_up(execution); /* before anything is there that could be thought to have run */
        row->ring[row->tail % RING] = item;
        pushed = ++row->tail;
        lane->pending++;
    }
    execution_unlock(execution);
    return pushed;
}

uint64_t execution_push(uint32_t stream, uint64_t ns, unsigned depth)
{
    return push_item(stream, (struct item){.kind = ITEM_KERNEL, .work = ns << WORK_SHIFT}, depth);
}

uint64_t execution_pushed(uint32_t stream)
{
    struct execution *execution = execution_lock();
    if (!execution)
        return 0;
    const struct stream_row *row = stream_of(execution, stream);
    uint64_t pushed = row ? row->tail : 0;
    execution_unlock(execution);
    return pushed;
}

bool execution_done(uint32_t stream, uint64_t target)
{
    struct execution *execution = execution_lock();
    if (!execution)
        return true;
    if (execution->virtual_clock)
        clock_settle(execution);
    catch_up(execution);
    const struct stream_row *row = stream_of(execution, stream);
    bool done = !row || row->head >= target;
    execution_unlock(execution);
    return done;
}

void execution_wait(uint32_t stream, uint64_t target)
{
    struct execution *execution = execution_lock();
    if (!execution)
        return;
    if (stream_of(execution, stream))
        await(execution, (struct awaited){.stream = stream, .target = target});
    execution_unlock(execution);
}

void execution_wait_all(const char *uuid)
{
    struct execution *execution = execution_lock();
    if (!execution)
        return;
    uint32_t lane = my_lane(execution, uuid, false);
    uint32_t streams[MAX_STREAMS];
    uint64_t targets[MAX_STREAMS];
    size_t count = 0;
    for (uint32_t i = lane == NOTHING ? NOTHING : execution->lanes[lane].streams;
         i < MAX_STREAMS && count < MAX_STREAMS; i = execution->streams[i].next) {
        streams[count] = i + 1;
        targets[count++] = execution->streams[i].tail;
    }
    for (size_t i = 0; i < count; i++)
        if (stream_of(execution, streams[i]))
            await(execution, (struct awaited){.stream = streams[i], .target = targets[i]});
    execution_unlock(execution);
}

/* --- events --------------------------------------------------------------------------------------------- */

uint32_t execution_event(const char *uuid)
{
    struct execution *execution = execution_lock();
    if (!execution)
        return 0;
    static uint32_t hint;
    uint32_t lane = my_lane(execution, uuid, true);
    uint32_t event = 0;
    for (uint32_t i = 0; lane != NOTHING && !event && i < MAX_STREAM_EVENTS; i++) {
        uint32_t place = (hint + i) % MAX_STREAM_EVENTS;
        if (execution->events[place].owner)
            continue;
        execution->events[place] = (struct event_row){.owner = lane + 1};
        if (execution->event_high <= place)
            execution->event_high = place + 1;
        hint = place + 1;
        event = place + 1;
    }
    execution_unlock(execution);
    return event;
}

static struct event_row *event_of(struct execution *execution, uint32_t event)
{
    if (!event || event > MAX_STREAM_EVENTS)
        return NULL;
    struct event_row *row = &execution->events[event - 1];
    return row->owner && mine(execution, row->owner - 1) ? row : NULL;
}

void execution_event_free(uint32_t event)
{
    struct execution *execution = execution_lock();
    if (!execution)
        return;
    struct event_row *row = event_of(execution, event);
    if (row) /* who still waits for it waits no longer */
        *row = (struct event_row){.done_turn = UINT64_MAX};
    execution_unlock(execution);
}

uint64_t execution_record(uint32_t stream, uint32_t event, unsigned depth, uint64_t *pushed)
{
    struct execution *execution = execution_lock();
    if (!execution)
        return 0;
    uint64_t turn = event_of(execution, event) ? ++execution->event_turns : 0;
    execution_unlock(execution);
    if (turn)
        *pushed =
            push_item(stream, (struct item){.kind = ITEM_EVENT, .event = event - 1, .turn = turn}, depth);
    return turn && *pushed ? turn : 0;
}

void execution_await(uint32_t stream, uint32_t event, uint64_t turn, unsigned depth)
{
    if (event && turn)
        push_item(stream, (struct item){.kind = ITEM_WAIT, .event = event - 1, .turn = turn}, depth);
}

bool execution_event_done(uint32_t event, uint64_t turn, uint64_t *done_ns)
{
    struct execution *execution = execution_lock();
    if (!execution)
        return true;
    if (execution->virtual_clock)
        clock_settle(execution);
    catch_up(execution);
    const struct event_row *row = event_of(execution, event);
    bool done = !row || row->done_turn >= turn;
    if (done_ns)
        *done_ns = row ? row->done_ns : 0;
    execution_unlock(execution);
    return done;
}

void execution_event_wait(uint32_t event, uint64_t turn)
{
    struct execution *execution = execution_lock();
    if (!execution)
        return;
    if (event_of(execution, event))
        await(execution, (struct awaited){.event = event, .target = turn});
    execution_unlock(execution);
}

/* --- the oracle ----------------------------------------------------------------------------------------- */

__attribute__((visibility("default"))) size_t sim_gpu_times(const char *uuid, struct sim_gpu_time *times,
                                                            size_t room)
{
    struct execution *execution = execution_lock();
    if (!execution)
        return 0;
    catch_up(execution);
    uint32_t place = gpu_place(execution, uuid, false);
    size_t count = 0;
    for (uint32_t i = 0; place != NOTHING && i < MAX_LANES; i++) {
        const struct lane_row *lane = &execution->lanes[i];
        if (lane->state == LANE_FREE || lane->gpu != place)
            continue;
        if (count < room)
            times[count] = (struct sim_gpu_time){.pid = lane->pid,
                                                 .live = lane->state == LANE_LIVE,
                                                 .start_time = lane->start_time,
                                                 .busy_ns = lane->busy_ns,
                                                 .kernels = lane->kernels};
        count++;
    }
    execution_unlock(execution);
    return count;
}

__attribute__((visibility("default"))) uint64_t sim_gpu_time(const char *uuid, uint32_t pid)
{
    struct execution *execution = execution_lock();
    if (!execution)
        return 0;
    catch_up(execution);
    uint32_t place = gpu_place(execution, uuid, false);
    uint64_t busy_ns = place != NOTHING && !pid ? execution->gpus[place].busy_ns : 0;
    for (uint32_t i = 0; place != NOTHING && pid && i < MAX_LANES; i++)
        if (execution->lanes[i].state != LANE_FREE && execution->lanes[i].gpu == place
            && execution->lanes[i].pid == pid)
            busy_ns = execution->lanes[i].busy_ns; /* the last one, if the pid was used again */
    execution_unlock(execution);
    return busy_ns;
}

__attribute__((visibility("default"))) uint64_t sim_now_ns(void)
{
    struct execution *execution = execution_lock();
    if (!execution)
        return clock_real_ns();
    uint64_t now_ns = execution->virtual_clock ? clock_local_ns(execution) : clock_real_ns();
    execution_unlock(execution);
    return now_ns;
}
