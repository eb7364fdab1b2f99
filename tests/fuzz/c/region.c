/* A usage region that somebody has written over, under everything that the library does with one. */
#include "../../../hook/limits.h"
#include "../../../hook/log.h"
#include "../../../hook/region.h"
#include "../../../hook/region_file.h"
#include "../../../hook/region_slots.h"
#include "../../../hook/shortage.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#define nanosleep(pause, rest) ((void)(pause))
#include "../../../hook/region_file.c"
#undef nanosleep
#include "../../../hook/region_content.c"
#include "../../../hook/region_slots.c"
#include "../../../hook/region.c"
#include "../../../hook/region_own.c"
#include "../../../hook/brief.c"
#include "../../../hook/counters.c"
#include "../../../hook/region_places.c"
#include "fuzz.h"

static const char gpu[] = "GPU-a1000000-0000-4000-8000-0000000000b2";
static struct settings own = {.smallest_core_permille = WHOLE_GPU_PERMILLE, .priority = DEFAULT_PRIORITY};
_Atomic(const struct settings *) settings_known = &own;
static struct made_region made;
static unsigned char fresh[FILE_BYTES];

const struct settings *settings_gather(void)
{
    return &own;
}

uint64_t settings_limit_bytes(const char *uuid, int listed_at)
{
    return listed_at < 0 ? strlen(uuid) << 20 : 0;
}

uint32_t settings_core_permille(const char *uuid, int listed_at)
{
    return strlen(uuid) && listed_at < 0 ? WHOLE_GPU_PERMILLE : 1;
}

bool limits_uuid(int i, char *text)
{
    strcpy(text, gpu);
    return i < 1;
}

struct made_region limits_region(void)
{
    return made;
}

void limits_place(int place, const char *uuid)
{
    fuzz_insist(place >= 0 && uuid[0]);
}

uint64_t limits_memory_bytes(int place)
{
    return (uint64_t)(place + 1) << 30;
}

static void forget(void)
{
    struct region *region = atomic_exchange(&region_known, NULL);
    if (region)
        munmap(region, FILE_BYTES);
    atomic_store(&region_mine, NULL);
    atomic_store(&looked_at_ns, 0);
    slots_forget();
}

static void use(void)
{
    struct member member;
    int place = region_join() ? region_device(gpu) : -1;
    fuzz_insist(place < MAX_DEVICES);
    region_used_bytes(place);
    if (place < 0)
        return;
    region_sweep();
    if (region_reserve(place, CHARGE_DATA, 1 << 20, 0))
        region_release(place, CHARGE_DATA, 1 << 20, 0);
    region_take(place, CHARGE_MODULE, 1 << 10);
    region_release(place, CHARGE_MODULE, UINT64_C(1) << 40, 0);
    for (int32_t i = 0; slots_next(region_mapped(), place, &i, &member);)
        fuzz_insist(i <= REGION_SLOTS);
    slots_hold(region_mapped(), place);
    region_told_bytes(place);
    fuzz_insist(region_told_permille(place) <= WHOLE_GPU_PERMILLE);
    region_device("GPU-of-somebody-else");
    region_own_bytes(place);
    region_host_pid();
}

/* What a library makes of an empty file. */
static void make_fresh(void)
{
    snprintf(own.cache_path, sizeof own.cache_path, "/dev/shm/vgpu-fuzz-%d", (int)getpid());
    unlink(own.cache_path);
    fuzz_insist(region_open());
    memcpy(fresh, region_mapped(), sizeof fresh);
    forget();
}

static void write_over(const uint8_t *data, size_t size)
{
    static const size_t areas[] = {0, 1592, 1848, 1856, 3816, 2008896, TAIL_OFFSET, TAIL_OFFSET + 64};
    static unsigned char content[FILE_BYTES];
    memcpy(content, fresh, sizeof content);
    while (size > 4) {
        size_t at = areas[data[0] % (sizeof areas / sizeof *areas)] + data[1] + 256 * (size_t)data[2];
        size_t room = at < sizeof content ? sizeof content - at : 0;
        size_t length = data[3] < size - 4 ? data[3] : size - 4;
        for (size_t i = 0; i < length && i < room; i++)
            content[at + i] = data[4 + i];
        data += 4 + length;
        size -= 4 + length;
    }
    int fd = open(own.cache_path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    struct stat status;
    fuzz_insist(fd >= 0 && pwrite(fd, content, sizeof content, 0) == sizeof content && fstat(fd, &status) == 0);
    made.inode = size == 3 ? status.st_ino : 0; /* as if the agent had made it */
    close(fd);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!own.cache_path[0])
        make_fresh();
    write_over(data, size);
    use();
    forget();
    unlink(own.cache_path);
    return 0;
}
