#include "nvml_stride.h"

#include <stdio.h>

enum nvml_stride nvml_stride_v3(const struct real_nvml *real)
{
    char version[80];
    int branch, release;
    if (!real->nvmlSystemGetDriverVersion
        || real->nvmlSystemGetDriverVersion(version, sizeof version) != NVML_SUCCESS
        || sscanf(version, "%d.%d", &branch, &release) != 2)
        return STRIDE_V2;
    return branch == 535 && release >= 43 && release < 98 ? STRIDE_DETAIL : STRIDE_V2;
}
