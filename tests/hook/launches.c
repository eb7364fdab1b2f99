/* Many threads of one process at the launch gate, for sanitizers: they launch kernels of random lengths on
 * random streams of several devices and capture some, while contexts end and the limits move. Prints how many
 * launches the gate let pass, and whether any passed it open.
 *
 * The driver is a struct of functions in here. A kernel runs for as long as its handle says, beside all
 * others.
 */
#include "../../hook/launch_gate.h"
#include "../../hook/monotonic.h"
#include "../../hook/real.h"
#include "../../hook/region.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { THREADS = 6, DEVICES = 3, STREAMS = 3, EVENTS_FAIL_EVERY = 97 };

struct CUevent_st {
    _Atomic uint64_t done_ns;
};

static _Atomic uint64_t busy_until_ns[STREAMS + 2];
static _Atomic unsigned calls;
static long rounds;
static _Thread_local CUdevice device_of_thread;
static _Atomic bool was_open;

static bool fails(void)
{
    return atomic_fetch_add(&calls, 1) % EVENTS_FAIL_EVERY == 0;
}

static size_t number(CUstream stream)
{
    return (uintptr_t)stream % (STREAMS + 2);
}

static CUresult device_of_context(CUdevice *device)
{
    *device = device_of_thread;
    return CUDA_SUCCESS;
}

static CUresult uuid_of(CUuuid *uuid, CUdevice device)
{
    memset(uuid, 0x22 + device, sizeof *uuid);
    return CUDA_SUCCESS;
}

static CUresult count_of(int *count)
{
    *count = DEVICES;
    return CUDA_SUCCESS;
}

static CUresult current(CUcontext *context)
{
    *context = (CUcontext)(void *)&busy_until_ns;
    return CUDA_SUCCESS;
}

static CUresult push(CUcontext context)
{
    (void)context;
    return CUDA_SUCCESS;
}

static CUresult make_stream(CUstream *stream, unsigned flags, int priority)
{
    (void)flags, (void)priority;
    *stream = (CUstream)(uintptr_t)(STREAMS + 1);
    return CUDA_SUCCESS;
}

static CUresult end_stream(CUstream stream)
{
    (void)stream;
    return CUDA_SUCCESS;
}

static CUresult make_event(CUevent *event, unsigned flags)
{
    (void)flags;
    *event = fails() ? NULL : calloc(1, sizeof **event);
    return *event ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult end_event(CUevent event)
{
    free(event);
    return CUDA_SUCCESS;
}

static CUresult record(CUevent event, CUstream stream)
{
    uint64_t now_ns = monotonic_ns(), busy_ns = atomic_load(&busy_until_ns[number(stream)]);
    atomic_store(&event->done_ns, busy_ns > now_ns ? busy_ns : now_ns);
    return fails() ? CUDA_ERROR_INVALID_HANDLE : CUDA_SUCCESS;
}

static CUresult query(CUevent event)
{
    return atomic_load(&event->done_ns) <= monotonic_ns() ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

static CUresult elapsed(float *ms, CUevent from, CUevent until)
{
    *ms = (float)((double)(int64_t)(atomic_load(&until->done_ns) - atomic_load(&from->done_ns)) / 1e6);
    return CUDA_SUCCESS;
}

static CUresult capturing(CUstream stream, CUstreamCaptureStatus *status)
{
    *status = (uintptr_t)stream == 1 ? CAPTURE_ACTIVE : CAPTURE_NONE;
    return CUDA_SUCCESS;
}

static CUresult exchange_mode(CUstreamCaptureMode *mode)
{
    *mode = 0;
    return CUDA_SUCCESS;
}

static CUresult is_done(CUstream stream)
{
    (void)stream;
    return CUDA_SUCCESS;
}

static struct real_cuda driver = {.cuCtxGetDevice = device_of_context,
                                  .cuDeviceGetUuid = uuid_of,
                                  .cuDeviceGetCount = count_of,
                                  .cuCtxGetCurrent = current,
                                  .cuCtxPushCurrent_v2 = push,
                                  .cuCtxPopCurrent_v2 = current,
                                  .cuStreamCreateWithPriority = make_stream,
                                  .cuStreamDestroy_v2 = end_stream,
                                  .cuEventCreate = make_event,
                                  .cuEventDestroy_v2 = end_event,
                                  .cuEventRecord = record,
                                  .cuEventQuery = query,
                                  .cuEventElapsedTime = elapsed,
                                  .cuStreamIsCapturing = capturing,
                                  .cuStreamQuery = is_done,
                                  .cuThreadExchangeStreamCaptureMode = exchange_mode};
static struct real_nvml without; /* any function */
_Atomic(const void *) real_known[DRIVERS] = {&driver, &without};
atomic_bool real_cuda_settled;

const void *real_search(enum driver which, bool load)
{
    (void)which;
    return load ? &driver : NULL;
}

static unsigned next(unsigned *state)
{
    return *state = *state * 1664525U + 1013904223U;
}

static void *work(void *argument)
{
    unsigned state = (unsigned)(uintptr_t)argument + 1;
    device_of_thread = (CUdevice)((uintptr_t)argument % DEVICES);
    for (long i = 0; i < rounds; i++) {
        struct launch launch;
        uint64_t us = 1 + next(&state) / 7 % 30;
        CUstream stream = (CUstream)(uintptr_t)(2 + next(&state) / 7 % STREAMS);
        bool captured = next(&state) / 7 % 50 == 0;
        if (captured)
            launch_gate_capture(true);
        stream = captured ? (CUstream)(uintptr_t)1 : stream;
        if (!captured && launch_gate_is_open()) {
            atomic_store(&was_open, true);
            continue;
        }
        launch_gate_pass(&launch, stream, false, estimate_key((void *)(uintptr_t)us, 1, 1, 1, 32, 1, 1, 0));
        uint64_t now_ns = monotonic_ns(), busy_ns = atomic_load(&busy_until_ns[number(stream)]);
        if (!captured)
            atomic_store(&busy_until_ns[number(stream)], (busy_ns > now_ns ? busy_ns : now_ns) + us * 1000);
        launch_gate_passed(&launch, next(&state) / 7 % 40 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
        if (captured)
            launch_gate_capture(false);
    }
    return NULL;
}

int main(int count, char **words)
{
    CUcontext context = (CUcontext)(void *)&busy_until_ns;
    pthread_t threads[THREADS];
    rounds = count > 1 ? atol(words[1]) : 0;
    if (!region_open())
        return 1;
    for (uintptr_t i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, work, (void *)i);
    for (int i = 0; i < 20; i++) {
        monotonic_sleep_until(monotonic_ns() + 2000000);
        region_tell_limits(i % DEVICES, 0, i % 2 ? 900 : 1000);
        uint32_t held = gpu_time_context_ending(context, i % 8 == 1);
        gpu_time_context_ended(held, context, i % 8 == 1);
    }
    for (int place = 0; place < DEVICES; place++)
        region_tell_limits(place, 0, 1000);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    gpu_time_context_ended(gpu_time_context_ending(context, true), context, true);
    printf("%ld %d\n", THREADS * rounds, was_open);
    return 0;
}
