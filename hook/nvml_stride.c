#include "nvml_stride.h"
#include "loose.h"

#include <stdio.h>

enum nvml_stride nvml_stride_v3(const struct real_nvml *real)
{
    static _Atomic int known; /* of a driver it does not change: it is asked once */
    enum nvml_stride stride = (enum nvml_stride)loose_load(&known);
    char version[80];
    int branch, release;
    if (stride)
        return stride;
    if (!real->nvmlSystemGetDriverVersion
        || real->nvmlSystemGetDriverVersion(version, sizeof version) != NVML_SUCCESS
        || sscanf(version, "%d.%d", &branch, &release) != 2)
        return STRIDE_V2;
    stride = branch == 535 && release >= 43 && release < 98 ? STRIDE_DETAIL : STRIDE_V2;
    loose_store(&known, stride);
    return stride;
}
