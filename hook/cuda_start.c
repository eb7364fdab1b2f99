/* cuInit: the door at which limits that cannot be kept are refused, rather than ignored.
 *
 * Without a driver it answers CUDA_ERROR_NO_DEVICE, which is what programs take for "no GPU here", and every
 * other wrapper CUDA_ERROR_NOT_INITIALIZED, as the driver does before cuInit has succeeded.
 */
#include "depth.h"
#include "gpu_time.h"
#include "log.h"
#include "real.h"
#include "region.h"
#include "region_slots.h"
#include "settings.h"

EXPORT CUresult cuInit(unsigned flags)
{
    const struct real_cuda *real = real_cuda();
    if (!real || !real->cuInit)
        return CUDA_ERROR_NO_DEVICE;
    const struct settings *asked = settings();
    if (!depth_inside() && asked->malformed) {
        log_refusal("%s", asked->problem);
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (asked->active && !depth_inside() && !region_join()) {
        log_refusal("device memory cannot be counted in %s: %s; %s", asked->cache_path, region_problem(),
                    region_advice());
        return CUDA_ERROR_OPERATING_SYSTEM;
    }
    if (asked->active && !depth_inside() && !gpu_time_prepare()) {
        log_refusal("no memory is left to measure what the GPU does");
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    slot_stays_in_children();
    depth_enter();
    CUresult result = real->cuInit(flags);
    depth_leave();
    if (result == CUDA_SUCCESS)
        real_cuda_settle(asked->active);
    return result;
}
