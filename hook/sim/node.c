/* How the configuration is found, kept current and asked; its grammar is in node_parse.c. */
#include "node.h"
#include "mig_state.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_FILE_BYTES = 1 << 20 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t environment_once = PTHREAD_ONCE_INIT;
static char *path; /* copies: the environment may change under our feet; never freed, others hold them */
static char *visible_devices; /* NULL: not set */
static struct sim_node *current;
static struct sim_node *_Atomic settled; /* with VGPU_SIM_RELOAD=never: the first good one, for ever */
static struct stat seen; /* identity of the file that was last looked at, good or bad */
static struct stat seen_mig; /* the same of its GPU instances; zero: there is none */

static void replace_current(struct sim_node *fresh)
{
    struct sim_node *old = current;
    current = fresh;
    if (old && old->readers == 0)
        free(old);
}

static void read_environment(void)
{
    const char *value = getenv("VGPU_SIM_DRIVER");
    path = value && *value ? strdup(value) : NULL;
    value = getenv("NVIDIA_VISIBLE_DEVICES");
    visible_devices = value ? strdup(value) : NULL;
}

static void refresh_environment(void)
{
    const char *value = getenv("VGPU_SIM_DRIVER");
    if (!value || !*value || (path && strcmp(path, value) == 0))
        return;
    read_environment();
    memset(&seen, 0, sizeof seen);
    memset(&seen_mig, 0, sizeof seen_mig);
    replace_current(NULL);
}

const char *sim_node_path(void)
{
    pthread_once(&environment_once, read_environment);
    pthread_mutex_lock(&lock);
    const char *now = path;
    pthread_mutex_unlock(&lock);
    return now;
}

void sim_node_look_again(void)
{
    pthread_once(&environment_once, read_environment);
    pthread_mutex_lock(&lock);
    refresh_environment();
    pthread_mutex_unlock(&lock);
}

static bool same_file(const struct stat *a, const struct stat *b)
{
    return a->st_dev == b->st_dev && a->st_ino == b->st_ino && a->st_size == b->st_size
        && a->st_mtim.tv_sec == b->st_mtim.tv_sec && a->st_mtim.tv_nsec == b->st_mtim.tv_nsec;
}

/* The whole file as a string to be freed, its length, and its identity as it was when opened. */
static char *read_file(struct stat *identity, size_t *read_bytes)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return NULL;
    char *text = NULL;
    if (fstat(fd, identity) == 0 && identity->st_size < MAX_FILE_BYTES)
        text = malloc((size_t)identity->st_size + 1);
    size_t length = 0;
    while (text && length < (size_t)identity->st_size) {
        ssize_t got = read(fd, text + length, (size_t)identity->st_size - length);
        if (got <= 0)
            break;
        length += (size_t)got;
    }
    if (text)
        text[length] = '\0';
    *read_bytes = length;
    close(fd);
    return text;
}

/* What was made through NVML; only asked where something can be. */
static struct stat look_at_instances(void)
{
    char mig[SIM_PATH_BYTES];
    struct stat now = {0};
    if (snprintf(mig, sizeof mig, "%s.mig", path) >= (int)sizeof mig || stat(mig, &now) != 0)
        memset(&now, 0, sizeof now);
    return now;
}

/* Called with the lock held. */
static void refresh(void)
{
    struct stat now, mig = {0};
    if (stat(path, &now) != 0)
        return;
    if (!current || current->divisible)
        mig = look_at_instances();
    if (same_file(&now, &seen) && same_file(&mig, &seen_mig))
        return;
    seen_mig = look_at_instances(); /* the configuration may have become one with such GPUs */
    size_t length = 0;
    char *text = read_file(&now, &length);
    struct sim_node *fresh = text ? calloc(1, sizeof *fresh) : NULL;
    char problem[256] = "not enough memory";
    if (fresh && sim_node_parse(fresh, text, length, problem, sizeof problem)) {
        mig_state_apply(fresh, path);
        if (!fresh->divisible)
            memset(&seen_mig, 0, sizeof seen_mig);
        replace_current(fresh);
    } else {
        fprintf(stderr, "simulated driver: %s: %s; the last good configuration stays in force\n", path,
                problem);
        free(fresh);
    }
    free(text);
    seen = now;
}

const struct sim_node *sim_node_acquire(void)
{
    struct sim_node *same = atomic_load_explicit(&settled, memory_order_acquire);
    if (same)
        return same;
    if (!sim_node_path())
        return NULL;
    pthread_mutex_lock(&lock);
    refresh();
    struct sim_node *node = current;
    if (node)
        node->readers++; /* for good, of one that is settled */
    const char *reload = node ? getenv("VGPU_SIM_RELOAD") : NULL;
    if (reload && strcmp(reload, "never") == 0)
        atomic_store_explicit(&settled, node, memory_order_release);
    pthread_mutex_unlock(&lock);
    return node;
}

void sim_node_release(const struct sim_node *node)
{
    if (!node || node == atomic_load_explicit(&settled, memory_order_relaxed))
        return;
    struct sim_node *held = (struct sim_node *)(uintptr_t)node;
    pthread_mutex_lock(&lock);
    held->readers--;
    if (held->readers == 0 && held != current)
        free(held);
    pthread_mutex_unlock(&lock);
}

int sim_node_find(const struct sim_node *node, const char *uuid)
{
    for (size_t i = 0; i < node->gpu_count; i++)
        if (strcmp(node->gpus[i].uuid, uuid) == 0)
            return (int)i;
    return -1;
}

const struct sim_gpu *sim_node_part(const struct sim_node *node, const char *uuid)
{
    for (size_t i = 0; i < node->part_count; i++)
        if (strcmp(node->parts[i].uuid, uuid) == 0)
            return &node->parts[i];
    return NULL;
}

int sim_node_failure(const struct sim_node *node, const char *call, int gpu)
{
    for (size_t i = 0; i < node->failure_count; i++) {
        const struct sim_failure *failure = &node->failures[i];
        if (strcmp(failure->call, call) == 0 && (failure->gpu < 0 || failure->gpu == gpu))
            return failure->code;
    }
    return 0;
}

bool sim_node_lacks(const struct sim_node *node, const char *call)
{
    for (size_t i = 0; i < node->absent_count; i++)
        if (strcmp(node->absent[i], call) == 0)
            return true;
    return false;
}

bool sim_node_virtual_clock(const struct sim_node *node)
{
    const char *value = getenv("VGPU_SIM_CLOCK");
    return value && *value ? strcmp(value, "virtual") == 0 : node->virtual_clock;
}

/* Whether the container has the GPU's device node: as CDI gives it, where the variable names none. */
static bool has_device_node(const struct sim_gpu *gpu)
{
    char node[64];
    snprintf(node, sizeof node, "/dev/nvidia%u", gpu->minor_number);
    return access(node, R_OK | W_OK) == 0;
}

static bool names_gpu(const char *word, size_t length, const struct sim_gpu *gpu, size_t index)
{
    char text[TEXT_BYTES];
    if (length == 0 || length >= sizeof text)
        return false;
    memcpy(text, word, length);
    text[length] = '\0';
    if (strcmp(text, gpu->uuid) == 0)
        return true;
    if (strcmp(text, "void") == 0)
        return has_device_node(gpu);
    char *end;
    unsigned long number = strtoul(text, &end, 10);
    if (*end == '\0' && end != text)
        return number == index;
    for (size_t i = 0; i < MAX_MIGS; i++)
        if (gpu->migs[i].present && strcmp(text, gpu->migs[i].uuid) == 0)
            return true;
    return false;
}

static bool listed(const char *list, const struct sim_gpu *gpu, size_t index)
{
    for (const char *word = list; word; word = strchr(word, ',') ? strchr(word, ',') + 1 : NULL)
        if (names_gpu(word, strcspn(word, ","), gpu, index))
            return true;
    return false;
}

bool sim_node_shows(const struct sim_node *node, int position, const char *uuid)
{
    pthread_once(&environment_once, read_environment);
    if (!visible_devices || strcmp(visible_devices, "all") == 0)
        return true;
    struct sim_gpu alone = {.minor_number = node->gpus[position].minor_number};
    memcpy(alone.uuid, node->gpus[position].uuid, TEXT_BYTES);
    if (listed(visible_devices, &alone, (size_t)position))
        return true;
    memcpy(alone.uuid, uuid, TEXT_BYTES);
    return listed(visible_devices, &alone, MAX_GPUS);
}

size_t sim_node_visible(const struct sim_node *node, int positions[MAX_GPUS])
{
    pthread_once(&environment_once, read_environment);
    bool all = !visible_devices || strcmp(visible_devices, "all") == 0;
    size_t count = 0;
    for (size_t i = 0; i < node->gpu_count; i++)
        if (all || listed(visible_devices, &node->gpus[i], i))
            positions[count++] = (int)i;
    return count;
}
