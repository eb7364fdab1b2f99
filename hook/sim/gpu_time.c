#include "gpu_time.h"

#include "clock.h"
#include "execution_state.h"

#define EXPORT __attribute__((visibility("default")))

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

EXPORT uint64_t sim_gpu_time(const char *uuid, uint32_t pid)
{
    struct execution *execution = execution_lock();
    if (!execution)
        return 0;
    execution_catch_up(execution);
    uint32_t place = execution_gpu(execution, uuid, false);
    uint64_t busy_ns = place != NOTHING && !pid ? execution->gpus[place].busy_ns : 0;
    for (uint32_t i = 0; place != NOTHING && pid && i < MAX_LANES; i++)
        if (execution->lanes[i].state != LANE_FREE && execution->lanes[i].gpu == place
            && execution->lanes[i].pid == pid)
            busy_ns = execution->lanes[i].busy_ns; /* the last one, if the pid was used again */
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
