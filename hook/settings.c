#include "settings.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define DEFAULT_CACHE_PATH "/tmp/cudevshr.cache"

static struct settings current;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static bool parse_unit(const char *text, unsigned *shift)
{
    static const char letters[] = "kmgt";
    if (*text == '\0' || strcasecmp(text, "b") == 0) {
        *shift = 0;
        return true;
    }
    for (unsigned i = 0; letters[i]; i++) {
        if ((*text | 0x20) != letters[i])
            continue;
        *shift = 10 * (i + 1);
        return text[1] == '\0' || strcasecmp(text + 1, "b") == 0 || strcasecmp(text + 1, "i") == 0
            || strcasecmp(text + 1, "ib") == 0;
    }
    return false;
}

bool parse_bytes(const char *text, uint64_t *bytes)
{
    enum { MOST_SHIFT_SAFE_DIGITS = 19, MOST_FRACTION_DIGITS = 6 };
    uint64_t whole = 0, fraction = 0, scale = 1;
    size_t digits = 0, fraction_digits = 0;
    text += strspn(text, " \t");
    for (; *text >= '0' && *text <= '9'; text++, digits++)
        whole = whole * 10 + (uint64_t)(*text - '0');
    if (*text == '.') {
        for (text++; *text >= '0' && *text <= '9'; text++, fraction_digits++) {
            if (fraction_digits >= MOST_FRACTION_DIGITS)
                continue;
            fraction = fraction * 10 + (uint64_t)(*text - '0');
            scale *= 10;
        }
        if (fraction_digits == 0)
            return false;
    }
    char unit[8] = "";
    unsigned shift = 0;
    text += strspn(text, " \t");
    size_t length = strcspn(text, " \t\r\n");
    if (digits == 0 || digits >= MOST_SHIFT_SAFE_DIGITS || length >= sizeof unit
        || text[length + strspn(text + length, " \t\r\n")])
        return false;
    memcpy(unit, text, length);
    if (!parse_unit(unit, &shift) || whole > UINT64_MAX >> (shift + 1) || (fraction_digits && shift == 0))
        return false;
    *bytes = (whole << shift) + (fraction << shift) / scale;
    return true;
}

/* A limit from the environment; 0 when there is none. */
static uint64_t limit_of(const char *name)
{
    const char *text = getenv(name);
    uint64_t bytes = 0;
    if (!text || !*text || parse_bytes(text, &bytes))
        return bytes;
    if (!current.malformed)
        snprintf(current.problem, sizeof current.problem,
                 "%s=%.64s is not an amount of memory; write for example 4096m or 4Gi", name, text);
    current.malformed = true;
    return 0;
}

static void read_limits(uint64_t limits[MAX_DEVICES])
{
    uint64_t fallback = limit_of("CUDA_DEVICE_MEMORY_LIMIT");
    uint64_t smallest = fallback;
    for (int i = 0; i < MAX_DEVICES; i++) {
        char name[64];
        snprintf(name, sizeof name, "CUDA_DEVICE_MEMORY_LIMIT_%d", i);
        uint64_t own = limit_of(name);
        limits[i] = own ? own : fallback;
        if (own && (!smallest || own < smallest))
            smallest = own;
    }
    current.smallest_limit_bytes = smallest;
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
        memcpy(current.uuids[current.uuid_count++], list, length);
        list += length + (list[length] == ',');
    }
}

static int number_of(const char *name, int absent)
{
    const char *text = getenv(name);
    return text && *text ? atoi(text) : absent;
}

static void read_environment(void)
{
    const char *path = getenv("CUDA_DEVICE_MEMORY_SHARED_CACHE");
    bool named = path && *path;
    uint64_t limits[MAX_DEVICES];
    current.log_level = number_of("LIBCUDA_LOG_LEVEL", 0);
    current.priority = number_of("CUDA_TASK_PRIORITY", 1);
    int sm_percent = number_of("CUDA_DEVICE_SM_LIMIT", 100);
    current.sm_percent = sm_percent > 0 && sm_percent < 100 ? (uint64_t)sm_percent : 100;
    if (snprintf(current.cache_path, sizeof current.cache_path, "%s", named ? path : DEFAULT_CACHE_PATH)
        >= (int)sizeof current.cache_path) {
        current.malformed = true;
        snprintf(current.problem, sizeof current.problem, "CUDA_DEVICE_MEMORY_SHARED_CACHE is too long");
    }
    read_limits(limits);
    read_visible_devices();
    memcpy(current.limit_bytes, limits, sizeof limits);
    current.active = named || current.smallest_limit_bytes || current.malformed;
}

const struct settings *settings(void)
{
    pthread_once(&once, read_environment);
    return &current;
}

uint64_t settings_limit_bytes(const char *uuid)
{
    const struct settings *now = settings();
    for (size_t i = 0; i < now->uuid_count; i++)
        if (strcmp(now->uuids[i], uuid) == 0)
            return now->limit_bytes[i];
    return now->smallest_limit_bytes;
}
