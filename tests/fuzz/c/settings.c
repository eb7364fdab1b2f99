/* The whole environment of a container: lines of the input are its variables. */
#include "../../../hook/settings.c"
#include "fuzz.h"

static const char *const names[] = {
    "CUDA_DEVICE_MEMORY_LIMIT", "CUDA_DEVICE_MEMORY_LIMIT_0", "CUDA_DEVICE_MEMORY_LIMIT_15",
    "CUDA_DEVICE_SM_LIMIT", "CUDA_DEVICE_SM_LIMIT_0", "CUDA_DEVICE_SM_LIMIT_15", "CUDA_OVERSUBSCRIBE",
    "GPU_CORE_UTILIZATION_POLICY", "CUDA_DEVICE_MEMORY_SHARED_CACHE", "CUDA_TASK_PRIORITY",
    "RECORD_KERNEL_INTERVAL", "NVIDIA_VISIBLE_DEVICES", "LIBCUDA_LOG_LEVEL", "CUDA_LAUNCH_BLOCKING",
};
enum { NAMES = sizeof names / sizeof *names };

enum limits_state limits_open(char *problem, size_t problem_bytes)
{
    (void)problem;
    (void)problem_bytes;
    return LIMITS_ABSENT;
}

const char *limits_cache_path(void)
{
    return "";
}

/* Each line: a letter that says which variable, and its value. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *rest = NULL, *text = fuzz_text(data, size);
    for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest))
        setenv(names[(unsigned char)line[0] % NAMES], line + 1, 1);
    memset(&current, 0, sizeof current);
    gather();
    atomic_store(&settings_known, &current);
    fuzz_insist(current.uuid_count <= MAX_DEVICES && strlen(current.problem) < sizeof current.problem);
    fuzz_insist(!current.malformed == !current.problem[0]);
    for (size_t i = 0; i < current.uuid_count; i++) {
        settings_limit_bytes(current.uuids[i], -1);
        fuzz_insist(settings_core_permille(current.uuids[i], -1) <= WHOLE_GPU_PERMILLE);
    }
    for (int i = 0; i < NAMES; i++)
        unsetenv(names[i]);
    return 0;
}
