#include "mig_profiles.h"

#include <string.h>

/* number, id, name, slices, SMs, MiB, memory slices, at most, where; engines: copy, decoder, jpeg, ofa */
static const struct mig_profile a100_40[] = {
    {0, 19, "1g.5gb", 1, 14, 4864, 1, 7, 0x7F, 1, 0, 0, 0},
    {7, 20, "1g.5gb+me", 1, 14, 4864, 1, 1, 0x7F, 1, 1, 1, 1},
    {9, 15, "1g.10gb", 1, 14, 9856, 2, 4, 0x55, 1, 1, 0, 0},
    {1, 14, "2g.10gb", 2, 28, 9856, 2, 3, 0x15, 2, 1, 0, 0},
    {2, 9, "3g.20gb", 3, 42, 19968, 4, 2, 0x11, 3, 2, 0, 0},
    {3, 5, "4g.20gb", 4, 56, 19968, 4, 1, 0x01, 4, 2, 0, 0},
    {4, 0, "7g.40gb", 7, 98, 40192, 8, 1, 0x01, 7, 5, 1, 1},
};
static const struct mig_profile a100_80[] = {
    {0, 19, "1g.10gb", 1, 14, 9728, 1, 7, 0x7F, 1, 0, 0, 0},
    {7, 20, "1g.10gb+me", 1, 14, 9728, 1, 1, 0x7F, 1, 1, 1, 1},
    {9, 15, "1g.20gb", 1, 14, 19968, 2, 4, 0x55, 1, 1, 0, 0},
    {1, 14, "2g.20gb", 2, 28, 19968, 2, 3, 0x15, 2, 1, 0, 0},
    {2, 9, "3g.40gb", 3, 42, 40192, 4, 2, 0x11, 3, 2, 0, 0},
    {3, 5, "4g.40gb", 4, 56, 40192, 4, 1, 0x01, 4, 2, 0, 0},
    {4, 0, "7g.80gb", 7, 98, 80640, 8, 1, 0x01, 7, 5, 1, 1},
};
static const struct mig_profile h100_80[] = {
    {0, 19, "1g.10gb", 1, 16, 9856, 1, 7, 0x7F, 1, 1, 1, 0},
    {7, 20, "1g.10gb+me", 1, 16, 9856, 1, 1, 0x7F, 1, 1, 1, 1},
    {9, 15, "1g.20gb", 1, 26, 20096, 2, 4, 0x55, 1, 1, 1, 0},
    {1, 14, "2g.20gb", 2, 32, 20096, 2, 3, 0x15, 2, 2, 2, 0},
    {2, 9, "3g.40gb", 3, 60, 40448, 4, 2, 0x11, 3, 3, 3, 0},
    {3, 5, "4g.40gb", 4, 64, 40448, 4, 1, 0x01, 4, 4, 4, 0},
    {4, 0, "7g.80gb", 7, 132, 81152, 8, 1, 0x01, 8, 7, 7, 1},
};
static const struct mig_profile h200_141[] = {
    {0, 19, "1g.18gb", 1, 16, 16384, 1, 7, 0x7F, 1, 1, 1, 0},
    {7, 20, "1g.18gb+me", 1, 16, 16384, 1, 1, 0x7F, 1, 1, 1, 1},
    {9, 15, "1g.35gb", 1, 26, 33024, 2, 4, 0x55, 1, 1, 1, 0},
    {1, 14, "2g.35gb", 2, 32, 33024, 2, 3, 0x15, 2, 2, 2, 0},
    {2, 9, "3g.71gb", 3, 60, 71168, 4, 2, 0x11, 3, 3, 3, 0},
    {3, 5, "4g.71gb", 4, 64, 71168, 4, 1, 0x01, 4, 4, 4, 0},
    {4, 0, "7g.141gb", 7, 132, 143104, 8, 1, 0x01, 8, 7, 7, 1},
};
static const struct mig_profile a30_24[] = {
    {0, 14, "1g.6gb", 1, 14, 5952, 1, 4, 0x0F, 1, 0, 0, 0},
    {1, 5, "2g.12gb", 2, 28, 12032, 2, 2, 0x05, 2, 2, 0, 0},
    {3, 0, "4g.24gb", 4, 56, 24192, 4, 1, 0x01, 4, 4, 1, 1},
};

#define PROFILES(table) table, sizeof table / sizeof *table
static const struct mig_model models[] = {
    {"A100", 60000, 8, PROFILES(a100_80)}, {"A100", 1, 8, PROFILES(a100_40)},
    {"H100", 1, 8, PROFILES(h100_80)},     {"H200", 1, 8, PROFILES(h200_141)},
    {"A30", 1, 4, PROFILES(a30_24)},
};

const struct mig_model *sim_mig_model(const struct sim_gpu *gpu)
{
    for (size_t i = 0; i < sizeof models / sizeof *models; i++)
        if (strstr(gpu->name, models[i].name) && gpu->memory_mib >= models[i].least_memory_mib)
            return &models[i];
    return NULL;
}

const struct mig_profile *sim_mig_profile(const struct mig_model *model, unsigned number)
{
    for (size_t i = 0; model && i < model->count; i++)
        if (model->profiles[i].number == number)
            return &model->profiles[i];
    return NULL;
}

const struct mig_profile *sim_mig_profile_by_id(const struct mig_model *model, unsigned id)
{
    for (size_t i = 0; model && i < model->count; i++)
        if (model->profiles[i].id == id)
            return &model->profiles[i];
    return NULL;
}

static const unsigned compute_slices[] = {1, 2, 3, 4, 7}; /* by number of the profile */

unsigned sim_mig_compute_slices(unsigned profile)
{
    return profile < sizeof compute_slices / sizeof *compute_slices ? compute_slices[profile] : 0;
}

unsigned sim_mig_instance_id(const struct mig_model *model, unsigned start, unsigned size)
{
    unsigned level = model->memory_slices / size; /* 1, 2, 4, 8: as many fit beside each other */
    return level - 1 + start / size;
}
