#include "gpu_time.h"

#include "clock.h"
#include "execution_state.h"

#define EXPORT __attribute__((visibility("default")))

static bool is_of(const struct lane_row *lane, uint32_t place, uint32_t pid)
{
    return lane->state != LANE_FREE && lane->gpu == place && lane->pid == pid;
}

/* What the contexts of the process had of which `first` is the first lane. */
static struct sim_gpu_time sum(const struct execution *execution, uint32_t first)
{
    const struct lane_row *process = &execution->lanes[first];
    struct sim_gpu_time time = {.pid = process->pid, .start_time = process->start_time};
    for (uint32_t i = first; i < MAX_LANES; i++) {
        const struct lane_row *lane = &execution->lanes[i];
        if (!is_of(lane, process->gpu, process->pid) || lane->start_time != process->start_time)
            continue;
        time.live |= lane->state == LANE_LIVE;
        time.busy_ns += lane->busy_ns;
        time.kernels += lane->kernels;
    }
    return time;
}

/* Whether no lane before it is of the same process. */
static bool is_first(const struct execution *execution, uint32_t index)
{
    const struct lane_row *process = &execution->lanes[index];
    for (uint32_t i = 0; i < index; i++)
        if (is_of(&execution->lanes[i], process->gpu, process->pid)
            && execution->lanes[i].start_time == process->start_time)
            return false;
    return true;
}

EXPORT size_t sim_gpu_times(const char *uuid, struct sim_gpu_time *times, size_t room)
{
    struct execution *execution = execution_lock();
    if (!execution)
        return 0;
    execution_catch_up(execution);
    uint32_t place = execution_gpu(execution, uuid, false);
    size_t count = 0;
    for (uint32_t i = 0; place != NOTHING && i < MAX_LANES; i++) {
        const struct lane_row *lane = &execution->lanes[i];
        if (!is_of(lane, place, lane->pid) || !is_first(execution, i))
            continue;
        if (count < room)
            times[count] = sum(execution, i);
        count++;
    }
    execution_unlock(execution);
    return count;
}

EXPORT uint64_t sim_gpu_time(const char *uuid, uint32_t pid)
{
    struct execution *execution = execution_lock();
    if (!execution)
        return 0;
    execution_catch_up(execution);
    uint32_t place = execution_gpu(execution, uuid, false);
    uint64_t busy_ns = place != NOTHING && !pid ? execution->gpus[place].busy_ns : 0;
    for (uint32_t i = 0; place != NOTHING && pid && i < MAX_LANES; i++)
        if (is_of(&execution->lanes[i], place, pid) && is_first(execution, i))
            busy_ns = sum(execution, i).busy_ns; /* the last one, if the pid was used again */
    execution_unlock(execution);
    return busy_ns;
}

EXPORT uint64_t sim_now_ns(void)
{
    struct execution *execution = execution_lock();
    if (!execution)
        return clock_real_ns();
    uint64_t now_ns = execution->virtual_clock ? clock_local_ns(execution) : clock_real_ns();
    execution_unlock(execution);
    return now_ns;
}
