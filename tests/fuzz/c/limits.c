/* The limits file as a container finds it, and a uuid that the driver tells. */
#include "../../../hook/limits_layout.h"
#include "../../../hook/monotonic.h"

#undef LIMITS_PATH
#define LIMITS_PATH "/nonexistent/vgpu.limits"
#include "../../../hook/limits_file.c"

#define path limits_path_of_the_file
#define monotonic_sleep_until(ns) ((void)(ns))
#include "../../../hook/limits.c"
#undef monotonic_sleep_until
#undef path
#include "fuzz.h"

static struct settings own = {.smallest_core_permille = WHOLE_GPU_PERMILLE};
_Atomic(const struct settings *) settings_known = &own;

const struct settings *settings_gather(void)
{
    return &own;
}

uint64_t settings_limit_bytes(const char *uuid, int listed_at)
{
    return strlen(uuid) << 20;
}

uint32_t settings_core_permille(const char *uuid, int listed_at)
{
    return strlen(uuid) % 2 ? 300 : WHOLE_GPU_PERMILLE;
}

void log_line(enum log_level level, const char *format, ...)
{
    (void)level, (void)format;
}

uint64_t region_told_bytes(int place)
{
    (void)place;
    return 0;
}

uint32_t region_told_permille(int place)
{
    (void)place;
    return WHOLE_GPU_PERMILLE;
}

void region_tell_limits(int place, uint64_t limit_bytes, uint32_t core_permille)
{
    (void)limit_bytes;
    fuzz_insist(place >= 0 && core_permille <= WHOLE_GPU_PERMILLE);
}

bool region_switch_is_on(void)
{
    return true;
}

_Atomic(struct region *) region_known;

static void look_at_all(const char *uuid)
{
    char text[64];
    for (int i = 0; limits_uuid(i, text); i++)
        limits_place(i, i % 2 ? text : uuid);
    for (int place = -1; place <= MAX_DEVICES; place++) {
        limits_memory_bytes(place);
        limits_oversubscribe(place);
        struct core_share share = limits_core(place);
        fuzz_insist(share.permille <= WHOLE_GPU_PERMILLE && (!share.enforced || share.permille));
    }
}

static void forget(void)
{
    if (file)
        munmap((void *)(uintptr_t)file, LIMITS_BYTES);
    file = NULL;
    line_count = 0;
    memset(cache_path, 0, sizeof cache_path);
    memset(places, 0, sizeof places);
    memset(good, 0, sizeof good);
    memset(good_sequence, 0, sizeof good_sequence);
}

/* The file's bytes; the last up to 64 of them are also the uuid. An input that begins with 'h' only says what
 * follows a head that is in order. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static unsigned char content[LIMITS_BYTES];
    const uint32_t head[] = {LIMITS_MAGIC, LIMITS_VERSION, 1 + (uint32_t)size % MAX_DEVICES, (uint32_t)size % 3};
    const char *uuid = fuzz_text(data + size - (size < 64 ? size : 64), size < 64 ? size : 64);
    char problem[256] = "";
    bool headed = size && data[0] == 'h';
    size_t at = headed ? sizeof head : 0, room = size < sizeof content - at ? size : sizeof content - at;
    memset(content, 0, sizeof content);
    memcpy(content, head, at);
    memcpy(content + at, data, room);
    int fd = find_beside() ? open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600) : -1;
    fuzz_insist(fd >= 0 && write(fd, content, size < 16 && !headed ? size : sizeof content) >= 0);
    close(fd);
    enum limits_state state = limits_open(problem, sizeof problem);
    fuzz_insist((state == LIMITS_UNUSABLE) == (problem[0] != '\0') && state != LIMITS_ABSENT);
    fuzz_insist(strlen(limits_cache_path()) < LIMITS_PATH_BYTES);
    limits_region();
    if (state == LIMITS_IN_FORCE)
        look_at_all(uuid);
    forget();
    return 0;
}
