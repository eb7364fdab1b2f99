/* How long the entries are that the driver writes into its lists of processes. */
#ifndef VGPU_NVML_STRIDE_H
#define VGPU_NVML_STRIDE_H

#include "real.h"

/* Each is the beginning of the next. */
enum nvml_stride {
    STRIDE_V1 = sizeof(struct nvml_process_info_v1),
    STRIDE_V2 = sizeof(struct nvml_process_info),
    STRIDE_DETAIL = sizeof(struct nvml_process_detail),
};

/* Of the third version of a list. Drivers from 535.43 on wrote a longer structure under this version's name,
 * until 535.98. What a caller expects cannot be seen: it gets what its driver writes, as it would without us.
 */
enum nvml_stride nvml_stride_v3(const struct real_nvml *real);

#endif
