#include "settings.h"
#include "amounts.h"
#include "limits.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define DEFAULT_CACHE_PATH "/tmp/cudevshr.cache"

_Atomic(const struct settings *) settings_known;
extern inline const struct settings *settings(void);

static struct settings current;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void is_malformed(const char *name, const char *text, const char *complaint)
{
    if (!current.malformed)
        snprintf(current.problem, sizeof current.problem, "%s=%.64s %s", name, text, complaint);
    current.malformed = true;
}

/* A limit from the environment; 0 when there is none. */
static uint64_t limit_of(const char *name)
{
    const char *text = getenv(name);
    uint64_t bytes = 0;
    if (text && *text && !parse_bytes(text, &bytes))
        is_malformed(name, text, "is not an amount of memory; write for example 4096m or 4Gi");
    return bytes;
}

/* A share from the environment; 0 when there is none. */
static uint32_t share_of(const char *name)
{
    const char *text = getenv(name);
    uint32_t permille = 0;
    if (text && *text && !parse_percent(text, &permille))
        is_malformed(name, text, "is not a share of a GPU; write a percentage, for example 30");
    return permille;
}

static void read_memory_limits(void)
{
    uint64_t fallback = limit_of("CUDA_DEVICE_MEMORY_LIMIT");
    uint64_t smallest = fallback;
    for (int i = 0; i < MAX_DEVICES; i++) {
        char name[64];
        snprintf(name, sizeof name, "CUDA_DEVICE_MEMORY_LIMIT_%d", i);
        uint64_t own = limit_of(name);
        current.limit_bytes[i] = own ? own : fallback;
        if (own && (!smallest || own < smallest))
            smallest = own;
    }
    current.smallest_limit_bytes = smallest;
}

static void read_core_limits(void)
{
    uint32_t fallback = share_of("CUDA_DEVICE_SM_LIMIT");
    fallback = fallback ? fallback : WHOLE_GPU_PERMILLE;
    current.smallest_core_permille = fallback;
    for (int i = 0; i < MAX_DEVICES; i++) {
        char name[64];
        snprintf(name, sizeof name, "CUDA_DEVICE_SM_LIMIT_%d", i);
        uint32_t own = share_of(name);
        current.core_permille[i] = own ? own : fallback;
        if (own && own < current.smallest_core_permille)
            current.smallest_core_permille = own;
    }
}

/* Device uuids, or nothing when the list is of another kind ("all", "0,1", a path). */
static void read_visible_devices(void)
{
    const char *list = getenv("NVIDIA_VISIBLE_DEVICES");
    while (list && *list) {
        size_t length = strcspn(list, ",");
        bool is_uuid = strncmp(list, "GPU-", 4) == 0 || strncmp(list, "MIG-", 4) == 0;
        if (!is_uuid || length >= UUID_BYTES || current.uuid_count == MAX_DEVICES) {
            current.uuid_count = 0;
            return;
        }
        memcpy(current.uuids[current.uuid_count], list, length);
        current.uuids[current.uuid_count++][length] = '\0';
        list += length + (list[length] == ',');
    }
}

enum { MOST_DIGITS = 9 };

/* What is no number, as far as it is read, is none; and what is too large for one. */
static int number_of(const char *name, int absent)
{
    const char *text = getenv(name);
    size_t sign = text && (*text == '-' || *text == '+'),
           digits = text ? strspn(text + sign, "0123456789") : 0;
    return digits && digits <= MOST_DIGITS ? atoi(text) : absent;
}

static bool word_is(const char *name, const char *word)
{
    const char *text = getenv(name);
    return text && strcasecmp(text, word) == 0;
}

static void read_environment(void)
{
    current.log_level = number_of("LIBCUDA_LOG_LEVEL", 0);
    current.priority = number_of("CUDA_TASK_PRIORITY", DEFAULT_PRIORITY);
    int interval_s = number_of("RECORD_KERNEL_INTERVAL", 1);
    current.record_interval_s = interval_s > 0 ? (unsigned)interval_s : 1;
    current.core_policy = word_is("GPU_CORE_UTILIZATION_POLICY", "force") ? CORES_FORCE
        : word_is("GPU_CORE_UTILIZATION_POLICY", "disable")               ? CORES_DISABLE
                                                                          : CORES_DEFAULT;
    current.oversubscribe = word_is("CUDA_OVERSUBSCRIBE", "true") || word_is("CUDA_OVERSUBSCRIBE", "1");
    current.launches_wait = number_of("CUDA_LAUNCH_BLOCKING", 0) != 0;
    read_memory_limits();
    read_core_limits();
    read_visible_devices();
}

/* Where to count: the limits file's word, the environment's, or where everybody looks. */
static void choose_cache_path(bool *named)
{
    const char *path = limits_cache_path();
    if (!*path)
        path = getenv("CUDA_DEVICE_MEMORY_SHARED_CACHE");
    *named = path && *path;
    if (snprintf(current.cache_path, sizeof current.cache_path, "%s", *named ? path : DEFAULT_CACHE_PATH)
        >= (int)sizeof current.cache_path)
        is_malformed("CUDA_DEVICE_MEMORY_SHARED_CACHE", "", "is too long");
    if (*current.cache_path != '/') /* it would be another one for each directory that somebody is in */
        is_malformed("CUDA_DEVICE_MEMORY_SHARED_CACHE", path, "is no absolute path; begin it with /");
}

static void gather(void)
{
    bool named;
    char problem[sizeof current.problem] = "";
    enum limits_state file = limits_open(problem, sizeof problem);
    read_environment();
    choose_cache_path(&named);
    if (file == LIMITS_UNUSABLE) {
        current.malformed = true;
        memcpy(current.problem, problem, sizeof problem);
    }
    current.active = named || current.smallest_limit_bytes || current.malformed || file == LIMITS_IN_FORCE
        || current.smallest_core_permille < WHOLE_GPU_PERMILLE;
}

const struct settings *settings_gather(void)
{
    pthread_once(&once, gather);
    atomic_store(&settings_known, &current);
    return &current;
}

/* Position of a device in the lists, -1 when it is not known by uuid. */
static int position_of(const char *uuid, int listed_at)
{
    const struct settings *now = settings();
    for (size_t i = 0; i < now->uuid_count; i++)
        if (strcasecmp(now->uuids[i], uuid) == 0)
            return (int)i;
    return listed_at;
}

uint64_t settings_limit_bytes(const char *uuid, int listed_at)
{
    int i = position_of(uuid, listed_at);
    return i < 0 ? settings()->smallest_limit_bytes : settings()->limit_bytes[i];
}

uint32_t settings_core_permille(const char *uuid, int listed_at)
{
    int i = position_of(uuid, listed_at);
    return i < 0 ? settings()->smallest_core_permille : settings()->core_permille[i];
}
