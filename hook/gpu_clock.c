#include "gpu_clock.h"
#include "monotonic.h"
#include "real.h"
#include "reclaim.h"

#define FIRST_LOOK_NS 10000
enum {
    LOOKS = 16, /* in as much time as has passed: so exact it is */
    OWN_STREAM = 2, /* as a handle: CU_STREAM_PER_THREAD */
};

int64_t gpu_clock_wait(CUstream stream, bool per_thread)
{
    const struct real_cuda *real = real_cuda();
    uint64_t began_ns = monotonic_ns(), now_ns = began_ns;
    CUresult result;
    if (!real->cuStreamQuery)
        return 0;
    struct quiet quiet = quiet_begin();
    if (per_thread && !stream)
        stream = (CUstream)OWN_STREAM;
    while ((result = real->cuStreamQuery(stream)) == CUDA_ERROR_NOT_READY
           && now_ns - began_ns < (uint64_t)SHARE_DEBT_NS) {
        monotonic_sleep_until(now_ns + FIRST_LOOK_NS + (now_ns - began_ns) / LOOKS);
        now_ns = monotonic_ns();
    }
    quiet_end(quiet);
    return result == CUDA_SUCCESS || result == CUDA_ERROR_NOT_READY ? (int64_t)now_ns : 0;
}

void gpu_clock_end(struct measured_lane *lane, const struct trace *trace, CUstream stream, bool per_thread,
                   uint64_t key, int64_t charged_ns)
{
    int64_t until_ns = gpu_clock_wait(stream, per_thread);
    if (!until_ns || !trace->began_ns)
        return; /* it stays charged as expected */
    int64_t from_ns = atomic_exchange(&lane->clocked_until_ns, until_ns);
    from_ns = from_ns > trace->began_ns ? from_ns : trace->began_ns; /* the same time is charged once */
    int64_t own = until_ns - from_ns;
    gpu_time_correct(&lane->lane, trace->turn, own - charged_ns);
    estimate_learn(&gpu_time_predictor, estimate_claim(&gpu_time_predictor, key), key, own, own);
}
