#include "limits.h"
#include "limits_file.h"
#include "log.h"
#include "loose.h"
#include "monotonic.h"
#include "region.h"
#include "settings.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

enum {
    READ_ATTEMPTS = 200,
    FIRST_READ_PATIENCE_MS = 500,
    UNKNOWN = -1,
    UNTOLD = 1, /* no line that is whole has such a sequence */
    PERMILLE_OF_PERCENT = 10
};

/* What a line says, in one piece. */
struct line {
    uint64_t memory_limit_bytes, lent_until_ns, blocked_until_ns;
    uint32_t flags, core_permille, lent_permille, told_memory_mib, told_core_permille;
};

/* What is known of a place; filled once, before `line` or the place itself is told to anybody. */
struct place {
    int line; /* in the file, UNKNOWN: not listed there */
    uint64_t settings_bytes;
    uint32_t settings_permille;
    _Atomic bool known;
    _Atomic uint32_t told_sequence; /* of the line, as the readers of the usage region were told it last */
};

static const struct limits_file *file; /* NULL: there is none */
static int line_count;
static char cache_path[LIMITS_PATH_BYTES];
static enum core_policy file_policy;
static struct place places[MAX_DEVICES];

/* What each line said when it was last whole, and its sequence then. */
static struct line good[MAX_DEVICES];
static _Atomic uint32_t good_sequence[MAX_DEVICES];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of both, and of places */
static pthread_once_t fork_once = PTHREAD_ONCE_INIT;

static void unlock_after_fork(void)
{
    pthread_mutex_init(&lock, NULL); /* the parent's other threads are not here to unlock it */
}

static void watch_forks(void)
{
    pthread_atfork(NULL, NULL, unlock_after_fork);
}

/* --- lines ---------------------------------------------------------------------------------------------- */

/* Another process writes while we read: every word is loaded once, as a word. */
#define WORD(field) __atomic_load_n(&(field), __ATOMIC_RELAXED)

/* A line as a whole; false while it is being written. */
static bool try_line(int i, struct line *line, uint32_t *sequence)
{
    const struct limits_device *device = &file->devices[i];
    *sequence = atomic_load_explicit(&device->sequence, memory_order_acquire);
    if (*sequence & 1)
        return false;
    line->flags = WORD(device->flags);
    line->memory_limit_bytes = WORD(device->memory_limit_bytes);
    line->core_permille = WORD(device->core_permille);
    line->lent_permille = WORD(device->lent_permille);
    line->lent_until_ns = WORD(device->lent_until_ns);
    line->blocked_until_ns = WORD(device->blocked_until_ns);
    line->told_memory_mib = WORD(device->told_memory_mib);
    line->told_core_permille = WORD(device->told_core_permille);
    atomic_thread_fence(memory_order_acquire);
    return atomic_load_explicit(&device->sequence, memory_order_relaxed) == *sequence;
}

static bool read_soon(int i, struct line *line, uint32_t *sequence)
{
    for (int attempt = 0; attempt < READ_ATTEMPTS; attempt++)
        if (try_line(i, line, sequence))
            return true;
    return false;
}

static void keep(int i, const struct line *line, uint32_t sequence)
{
    pthread_mutex_lock(&lock);
    good[i] = *line;
    loose_store(&good_sequence[i], sequence);
    pthread_mutex_unlock(&lock);
}

static void publish(int place, const struct line *line);

/* What a line says, or said when it was last whole. */
static uint32_t read_any(int i, struct line *line)
{
    uint32_t sequence;
    if (read_soon(i, line, &sequence)) {
        if (sequence != loose_load(&good_sequence[i]))
            keep(i, line, sequence);
        return sequence;
    }
    pthread_mutex_lock(&lock);
    *line = good[i];
    sequence = loose_load(&good_sequence[i]);
    pthread_mutex_unlock(&lock);
    return sequence;
}

/* The same of a known place. */
static void read_line(int place, struct line *line)
{
    uint32_t sequence = read_any(places[place].line, line);
    if (sequence != loose_load(&places[place].told_sequence)) {
        loose_store(&places[place].told_sequence, sequence);
        publish(place, line);
    }
}

/* --- taking the file into force ------------------------------------------------------------------------- */

/* Every line was whole at least once. */
static bool read_first(void)
{
    for (int i = 0; i < line_count; i++) {
        uint32_t sequence;
        for (int ms = 0; !read_soon(i, &good[i], &sequence); ms++) {
            if (ms == FIRST_READ_PATIENCE_MS)
                return false;
            monotonic_sleep_until(monotonic_ns() + 1000000); /* the agent may wait for a processor */
        }
        loose_store(&good_sequence[i], sequence);
    }
    return true;
}

enum limits_state limits_open(char *problem, size_t problem_bytes)
{
    pthread_once(&fork_once, watch_forks);
    file = limits_file_map(problem, problem_bytes);
    if (!file)
        return *problem ? LIMITS_UNUSABLE : LIMITS_ABSENT;
    line_count = (int)file->device_count;
    file_policy = (enum core_policy)file->core_policy;
    memcpy(cache_path, file->cache_path, sizeof cache_path);
    cache_path[sizeof cache_path - 1] = '\0';
    if (read_first())
        return LIMITS_IN_FORCE;
    limits_file_complain(problem, problem_bytes, "was left half written");
    return LIMITS_UNUSABLE;
}

struct made_region limits_region(void)
{
    return file ? (struct made_region){file->region_inode, file->region_id} : (struct made_region){0};
}

const char *limits_cache_path(void)
{
    return cache_path;
}

/* --- places --------------------------------------------------------------------------------------------- */

bool limits_uuid(int i, char *text)
{
    if (i >= line_count)
        return false;
    const unsigned char *b = file->devices[i].uuid;
    sprintf(text, "%s-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x",
            file->devices[i].flags & LIMITS_MIG ? "MIG" : "GPU", b[0], b[1], b[2], b[3], b[4], b[5], b[6],
            b[7], b[8], b[9], b[10], b[11], b[12], b[13], b[14], b[15]);
    return true;
}

/* The 16 bytes of "GPU-xxxxxxxx-xxxx-..." or "MIG-..."; false when the text is another. */
static bool parse_uuid(const char *text, bool *mig, unsigned char bytes[16])
{
    *mig = strncasecmp(text, "MIG-", 4) == 0;
    if (!*mig && strncasecmp(text, "GPU-", 4) != 0)
        return false;
    text += 4;
    for (int i = 0; i < 16; i++, text += 2) {
        if (i == 4 || i == 6 || i == 8 || i == 10)
            text += *text == '-';
        unsigned value;
        int used = 0;
        if (sscanf(text, "%2x%n", &value, &used) != 1 || used != 2)
            return false;
        bytes[i] = (unsigned char)value;
    }
    return *text == '\0';
}

static int line_of(const char *uuid)
{
    unsigned char bytes[16];
    bool mig;
    if (!parse_uuid(uuid, &mig, bytes))
        return UNKNOWN;
    for (int i = 0; i < line_count; i++)
        if (((file->devices[i].flags & LIMITS_MIG) != 0) == mig
            && memcmp(file->devices[i].uuid, bytes, sizeof bytes) == 0)
            return i;
    return UNKNOWN;
}

void limits_place(int place, const char *uuid)
{
    if (place < 0 || place >= MAX_DEVICES || atomic_load(&places[place].known))
        return;
    int line_number = line_of(uuid); /* UNKNOWN without a file */
    uint64_t bytes = settings_limit_bytes(uuid, line_number);
    uint32_t permille = settings_core_permille(uuid, line_number);
    pthread_mutex_lock(&lock);
    bool known = loose_load(&places[place].known);
    if (!known) {
        places[place].line = line_number;
        places[place].settings_bytes = bytes;
        places[place].settings_permille = permille;
        atomic_store(&places[place].known, true);
    }
    pthread_mutex_unlock(&lock);
    struct line line;
    uint64_t told = known || file || !bytes ? 0 : region_told_bytes(place);
    if (told && told != bytes)
        log_warning("%s limits %s to %llu bytes, not the environment's %llu, until it is deleted",
                    settings()->cache_path, uuid, (unsigned long long)told, (unsigned long long)bytes);
    if (!known && places[place].line != UNKNOWN) {
        loose_store(&places[place].told_sequence, UNTOLD);
        read_line(place, &line);
    }
}

/* --- what holds ----------------------------------------------------------------------------------------- */

/* 0 is no limit for both. */
static uint64_t lower_limit(uint64_t a, uint64_t b)
{
    return a && (!b || a < b) ? a : b;
}

static uint32_t share_in(const struct line *line)
{
    return line->core_permille && line->core_permille < WHOLE_GPU_PERMILLE ? line->core_permille
                                                                           : WHOLE_GPU_PERMILLE;
}

/* Tell the readers of the usage region what the agent allows. */
static void publish(int place, const struct line *line)
{
    region_tell_limits(place, line->memory_limit_bytes, share_in(line));
}

/* What holds for a device that the agent did not list, though it did list some: the least of those, and it is
 * blocked while one of them is. It is not this container's. */
static void least_line(struct line *least)
{
    *least = (struct line){.core_permille = WHOLE_GPU_PERMILLE};
    for (int i = 0; i < line_count; i++) {
        struct line line;
        read_any(i, &line);
        least->memory_limit_bytes = lower_limit(line.memory_limit_bytes, least->memory_limit_bytes);
        least->core_permille =
            share_in(&line) < least->core_permille ? share_in(&line) : least->core_permille;
        if (line.blocked_until_ns > least->blocked_until_ns)
            least->blocked_until_ns = line.blocked_until_ns;
    }
}

/* What the agent says of a known place. */
static void line_at(int place, struct line *line)
{
    if (places[place].line == UNKNOWN)
        least_line(line);
    else
        read_line(place, line);
}

static bool known(int place)
{
    return place >= 0 && place < MAX_DEVICES
        && atomic_load_explicit(&places[place].known, memory_order_acquire);
}

uint64_t limits_memory_bytes(int place)
{
    struct line line;
    if (!known(place))
        return 0;
    if (file) {
        line_at(place, &line);
        uint64_t own = places[place].settings_bytes;
        return own == (uint64_t)line.told_memory_mib << 20 ? line.memory_limit_bytes
                                                           : lower_limit(line.memory_limit_bytes, own);
    }
    uint64_t told = region_told_bytes(place);
    return told ? told : places[place].settings_bytes;
}

bool limits_oversubscribe(int place)
{
    struct line line;
    if (!file || !known(place))
        return settings()->oversubscribe;
    line_at(place, &line);
    return (line.flags & LIMITS_OVERSUBSCRIBE) != 0;
}

/* The environment may only lower what the agent allows; here and in the two functions around. */
static enum core_policy policy(void)
{
    enum core_policy own = settings()->core_policy;
    return !file || own == CORES_FORCE ? own : file_policy;
}

struct core_share limits_core(int place)
{
    struct line line;
    struct core_share share = {.permille = WHOLE_GPU_PERMILLE, .container_permille = WHOLE_GPU_PERMILLE};
    if (!known(place))
        return share;
    share.permille = places[place].settings_permille;
    if (file) {
        line_at(place, &line);
        share.container_permille = share_in(&line);
        if (share.permille == line.told_core_permille)
            share.permille = share.container_permille;
        share.lent_permille = settings()->core_policy == CORES_FORCE ? 0 : line.lent_permille;
        share.lent_until_ns = line.lent_until_ns;
        share.blocked_until_ns = line.blocked_until_ns;
    } else {
        share.container_permille = region_told_permille(place);
        if (share.container_permille - share.permille < PERMILLE_OF_PERCENT)
            share.container_permille = share.permille; /* that is told in whole percents, rounded up */
    }
    if (share.container_permille < share.permille)
        share.permille = share.container_permille;
    enum core_policy now = policy();
    share.enforced = share.permille < WHOLE_GPU_PERMILLE
        && (now == CORES_FORCE || (now == CORES_DEFAULT && region_switch_is_on()));
    return share;
}

const _Atomic uint32_t *limits_core_word(int place)
{
    struct region *region = region_mapped();
    if (!known(place) || !region)
        return NULL;
    if (file)
        return places[place].line >= 0 ? &file->devices[places[place].line].sequence : NULL;
    return (const _Atomic uint32_t *)(const void *)&region->sm_percent[place]; /* its low half */
}
