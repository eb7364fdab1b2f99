/* cuInit: the door at which limits that cannot be kept are refused, rather than ignored. */
#include "depth.h"
#include "log.h"
#include "real.h"
#include "region.h"
#include "settings.h"

EXPORT CUresult cuInit(unsigned flags)
{
    const struct real_cuda *real = real_cuda();
    if (!real || !real->cuInit)
        return CUDA_ERROR_NOT_INITIALIZED;
    if (settings()->malformed) {
        log_error("%s", settings()->problem);
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (settings()->active && !depth_inside() && !region_join())
        return CUDA_ERROR_OPERATING_SYSTEM;
    depth_enter();
    CUresult result = real->cuInit(flags);
    depth_leave();
    return result;
}
