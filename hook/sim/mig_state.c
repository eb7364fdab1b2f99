#include "mig_state.h"
#include "mig_profiles.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

enum { LINE_BYTES = 256 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* flock does not keep threads apart */

static bool path_of(const char *configuration, char *path, size_t bytes)
{
    return configuration && snprintf(path, bytes, "%s.mig", configuration) < (int)bytes;
}

struct mig_mode *mig_mode_of(struct mig_state *state, const char *uuid)
{
    for (size_t i = 0; i < state->mode_count; i++)
        if (strcmp(state->modes[i].uuid, uuid) == 0)
            return &state->modes[i];
    return NULL;
}

struct mig_gpu_instance *mig_gpu_instance_of(struct mig_state *state, const char *uuid, unsigned id)
{
    for (size_t i = 0; i < state->gpu_instance_count; i++)
        if (state->gpu_instances[i].id == id && strcmp(state->gpu_instances[i].uuid, uuid) == 0)
            return &state->gpu_instances[i];
    return NULL;
}

struct mig_compute_instance *mig_compute_instance_of(struct mig_state *state, const char *uuid,
                                                     unsigned gpu_instance, unsigned id)
{
    for (size_t i = 0; i < state->compute_instance_count; i++) {
        struct mig_compute_instance *one = &state->compute_instances[i];
        if (one->gpu_instance == gpu_instance && one->id == id && strcmp(one->uuid, uuid) == 0)
            return one;
    }
    return NULL;
}

static void parse(struct mig_state *state, const char *line)
{
    struct mig_mode mode = {0};
    struct mig_gpu_instance gi = {0};
    struct mig_compute_instance ci = {0};
    if (sscanf(line, "mode %95s %u %u", mode.uuid, &mode.current, &mode.pending) == 3
        && state->mode_count < MAX_MODES)
        state->modes[state->mode_count++] = mode;
    else if (sscanf(line, "gi %95s %u %u %u %u", gi.uuid, &gi.id, &gi.profile, &gi.start, &gi.size) == 5
             && state->gpu_instance_count < MAX_GPU_INSTANCES)
        state->gpu_instances[state->gpu_instance_count++] = gi;
    else if (sscanf(line, "ci %95s %u %u %u", ci.uuid, &ci.gpu_instance, &ci.id, &ci.profile) == 4
             && state->compute_instance_count < MAX_COMPUTE_INSTANCES)
        state->compute_instances[state->compute_instance_count++] = ci;
}

static void read_state(const char *path, struct mig_state *state)
{
    char line[LINE_BYTES];
    FILE *file = fopen(path, "re");
    if (!file)
        return;
    while (fgets(line, sizeof line, file))
        parse(state, line);
    fclose(file);
}

static bool write_state(const char *path, const struct mig_state *state)
{
    char fresh[SIM_PATH_BYTES + 8];
    snprintf(fresh, sizeof fresh, "%s.new", path);
    FILE *file = fopen(fresh, "we");
    if (!file)
        return false;
    for (size_t i = 0; i < state->mode_count; i++)
        fprintf(file, "mode %s %u %u\n", state->modes[i].uuid, state->modes[i].current,
                state->modes[i].pending);
    for (size_t i = 0; i < state->gpu_instance_count; i++) {
        const struct mig_gpu_instance *gi = &state->gpu_instances[i];
        fprintf(file, "gi %s %u %u %u %u\n", gi->uuid, gi->id, gi->profile, gi->start, gi->size);
    }
    for (size_t i = 0; i < state->compute_instance_count; i++) {
        const struct mig_compute_instance *ci = &state->compute_instances[i];
        fprintf(file, "ci %s %u %u %u\n", ci->uuid, ci->gpu_instance, ci->id, ci->profile);
    }
    bool good = !ferror(file);
    return fclose(file) == 0 && good && rename(fresh, path) == 0;
}

static nvmlReturn_t within(mig_change *visit, void *argument, bool writes)
{
    char path[SIM_PATH_BYTES], lock_path[SIM_PATH_BYTES + 8];
    if (!path_of(sim_node_path(), path, sizeof path))
        return NVML_ERROR_UNKNOWN;
    snprintf(lock_path, sizeof lock_path, "%s.lock", path);
    struct mig_state *state = calloc(1, sizeof *state);
    if (!state)
        return NVML_ERROR_MEMORY;
    pthread_mutex_lock(&lock);
    int fd = writes ? open(lock_path, O_RDWR | O_CREAT | O_CLOEXEC, 0666) : -1;
    nvmlReturn_t result = NVML_ERROR_UNKNOWN;
    if (!writes || (fd >= 0 && flock(fd, LOCK_EX) == 0)) {
        read_state(path, state);
        result = visit(state, argument);
        if (writes && result == NVML_SUCCESS && !write_state(path, state))
            result = NVML_ERROR_UNKNOWN;
    }
    if (fd >= 0)
        close(fd); /* and with it the lock */
    pthread_mutex_unlock(&lock);
    free(state);
    return result;
}

nvmlReturn_t mig_state_change(mig_change *change, void *argument)
{
    return within(change, argument, true);
}

nvmlReturn_t mig_state_look(mig_change *look, void *argument)
{
    return within(look, argument, false); /* the file is replaced as a whole */
}

/* --- what the node has of it -----------------------------------------------------------------------------
 */

static uint64_t hashed(uint64_t seed, const char *text)
{
    for (; *text; text++)
        seed = (seed ^ (unsigned char)*text) * 0x100000001B3ULL;
    return seed ^ seed >> 29;
}

void mig_device_uuid(const char *gpu_uuid, unsigned gpu_instance, unsigned compute_instance,
                     char uuid[TEXT_BYTES])
{
    char place[TEXT_BYTES + 32];
    snprintf(place, sizeof place, "%s/%u/%u", gpu_uuid, gpu_instance, compute_instance);
    uint64_t first = hashed(0xCBF29CE484222325ULL, place), second = hashed(first, place);
    snprintf(uuid, TEXT_BYTES, "MIG-%08x-%04x-5%03x-8%03x-%012llx", (unsigned)(first >> 32),
             (unsigned)(first >> 16 & 0xFFFF), (unsigned)(first & 0xFFF), (unsigned)(second >> 48 & 0xFFF),
             (unsigned long long)(second & 0xFFFFFFFFFFFFULL));
}

static void add_device(struct sim_gpu *gpu, const struct mig_profile *profile,
                       const struct mig_compute_instance *ci)
{
    for (size_t i = 0; i < MAX_MIGS; i++) {
        struct sim_mig *mig = &gpu->migs[i];
        if (mig->present)
            continue;
        *mig = (struct sim_mig){.present = true,
                                .gpu_instance = ci->gpu_instance,
                                .compute_instance = ci->id,
                                .memory_mib = profile->memory_mib,
                                .slices = profile->slices,
                                .compute_slices = sim_mig_compute_slices(ci->profile)};
        mig->multiprocessors = profile->multiprocessors * mig->compute_slices / profile->slices;
        mig_device_uuid(gpu->uuid, ci->gpu_instance, ci->id, mig->uuid);
        return;
    }
}

static void apply_to(struct sim_gpu *gpu, struct mig_state *state)
{
    const struct mig_model *model = sim_mig_model(gpu);
    const struct mig_mode *mode = mig_mode_of(state, gpu->uuid);
    if (mode) {
        gpu->mig = mode->current != 0;
        gpu->pending_mig = mode->pending != 0;
    }
    for (size_t i = 0; gpu->mig && i < state->compute_instance_count; i++) {
        const struct mig_compute_instance *ci = &state->compute_instances[i];
        if (strcmp(ci->uuid, gpu->uuid) != 0)
            continue;
        const struct mig_gpu_instance *gi = mig_gpu_instance_of(state, gpu->uuid, ci->gpu_instance);
        const struct mig_profile *profile = gi ? sim_mig_profile(model, gi->profile) : NULL;
        if (profile)
            add_device(gpu, profile, ci);
    }
}

/* To CUDA a MIG device is a device of its own. */
static void add_parts(struct sim_node *node, int position)
{
    const struct sim_gpu *gpu = &node->gpus[position];
    for (size_t i = 0; i < MAX_MIGS && node->part_count < MAX_PARTS; i++) {
        const struct sim_mig *mig = &gpu->migs[i];
        if (!gpu->mig || !mig->present)
            continue;
        struct sim_gpu *part = &node->parts[node->part_count++];
        *part = *gpu;
        memcpy(part->uuid, mig->uuid, TEXT_BYTES);
        memset(part->migs, 0, sizeof part->migs);
        part->mig = false;
        part->memory_mib = (int64_t)mig->memory_mib;
        part->reserved_mib = 0;
        part->multiprocessors = mig->multiprocessors;
        part->parent = position;
    }
}

void mig_state_apply(struct sim_node *node, const char *configuration)
{
    char path[SIM_PATH_BYTES];
    struct mig_state *state = calloc(1, sizeof *state);
    if (state && path_of(configuration, path, sizeof path))
        read_state(path, state);
    for (size_t i = 0; i < node->gpu_count; i++) {
        node->gpus[i].parent = -1;
        if (state && sim_mig_model(&node->gpus[i])) {
            node->divisible = true;
            apply_to(&node->gpus[i], state);
        }
        add_parts(node, (int)i);
    }
    free(state);
}
