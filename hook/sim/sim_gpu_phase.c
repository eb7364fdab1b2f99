#include "sim_gpu_phase.h"

#include <stdlib.h>
#include <string.h>

static bool take_mix(struct phase *phase, char *names)
{
    phase->mix_count = 0;
    char *rest = NULL;
    for (char *name = strtok_r(names, "+", &rest); name; name = strtok_r(NULL, "+", &rest)) {
        if (strcmp(name, "none") == 0)
            return true;
        if (phase->mix_count == MAX_MIX || strlen(name) >= sizeof phase->mix[0])
            return false;
        strcpy(phase->mix[phase->mix_count++], name);
    }
    return phase->mix_count > 0;
}

static bool take_way(struct phase *phase, const char *name)
{
    static const char *const ways[] = {"kernel", "ex", "cooperative", "graph"};
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        if (strcmp(name, ways[i]) == 0) {
            phase->way = (enum way)i;
            return true;
        }
    }
    return false;
}

static bool take_pair(struct phase *phase, char *pair)
{
    const struct {
        const char *key;
        unsigned long *value;
    } numbers[] = {{"ms", &phase->ms},           {"nodes", &phase->nodes},
                   {"streams", &phase->streams}, {"shared", &phase->shared},
                   {"handle", &phase->handle},   {"sync", &phase->sync},
                   {"burst", &phase->burst},     {"idle_us", &phase->idle_us},
                   {"kill", &phase->kill},       {"shapes", &phase->shapes},
                   {"rare", &phase->rare},       {"fresh", &phase->fresh},
                   {"stay", &phase->stay},       {"blocking", &phase->blocking},
                   {"legacy", &phase->legacy},   {"contexts", &phase->contexts},
                   {"urgent", &phase->urgent},   {"thread", &phase->thread}};
    char *value = strchr(pair, '=');
    if (!value)
        return false;
    *value++ = '\0';
    if (strcmp(pair, "kernel") == 0)
        return take_mix(phase, value);
    if (strcmp(pair, "by") == 0)
        return take_way(phase, value);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        char *end;
        if (strcmp(pair, numbers[i].key) != 0)
            continue;
        *numbers[i].value = strtoul(value, &end, 10);
        return end != value && *end == '\0';
    }
    return false;
}

bool phase_take(struct phase *phase, char *text)
{
    *phase = (struct phase){.ms = 1000,
                            .nodes = 10,
                            .streams = 1,
                            .mix = {"kernel"},
                            .mix_count = 1,
                            .shapes = 1,
                            .contexts = 1,
                            .stay = 1};
    char *rest = NULL;
    for (char *pair = strtok_r(text, ",", &rest); pair; pair = strtok_r(NULL, ",", &rest))
        if (!take_pair(phase, pair))
            return false;
    return phase->streams <= MAX_OWN_STREAMS && phase->shapes > 0 && phase->contexts > 0 && phase->stay > 0
        && phase->contexts <= MAX_CONTEXTS && (!phase->rare || phase->mix_count > 1)
        && (phase->way != BY_GRAPH || phase->streams > 0);
}
