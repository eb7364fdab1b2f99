#include "node_execution.h"

#include <stdlib.h>
#include <string.h>

enum {
    MAX_US = 60000000,
    MAX_EVENT_NS = 1000000,
    RING_ROOM = 1024,
    MAX_CONNECTIONS = 32,
    MAX_DRIFT_PPM = 1000,
    MAX_ONE_IN = 1000000
};

bool parse_execution(const struct line *line, struct sim_node *node)
{
    const struct {
        const char *word;
        long low, high;
        unsigned *value;
    } numbers[] = {{"kernel_us", 0, MAX_US, &node->kernel_us},
                   {"slice_us", 1, MAX_US, &node->slice_us},
                   {"launch_us", 0, MAX_US, &node->launch_us},
                   {"event_ns", 0, MAX_EVENT_NS, &node->event_ns},
                   {"event_step_ns", 0, MAX_EVENT_NS, &node->event_step_ns},
                   {"queue_depth", 1, RING_ROOM, &node->queue_depth},
                   {"connections", 0, MAX_CONNECTIONS, &node->connections},
                   {"drift_ppm", 0, MAX_DRIFT_PPM, &node->drift_ppm}};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        long number;
        if (strcmp(line->words[0], numbers[i].word) != 0)
            continue;
        if (!parse_number(line, numbers[i].word, line->words[1], numbers[i].low, numbers[i].high, &number))
            return false;
        *numbers[i].value = (unsigned)number;
        return true;
    }
    return refuse(line, "unknown statement %s", line->words[0]);
}

bool parse_kernel(const struct line *line, struct sim_node *node)
{
    struct sim_kernel kernel = {.name = ""};
    const char *text = value_of(line, "us");
    char low[16];
    size_t length = text ? strcspn(text, ".") : 0;
    bool range = text && strncmp(text + length, "..", 2) == 0;
    long low_us, high_us, one_in = 0, after = 0, alike = 0, meets = 0, gpu = ANY_GPU;
    if (!copy_text(line, "the name", line->words[1], kernel.name, sizeof kernel.name))
        return false;
    if (!text || length >= sizeof low || (text[length] && !range))
        return refuse(line, "us= must be a number or two with .. between them");
    memcpy(low, text, length);
    low[length] = '\0';
    if (!parse_number(line, "us", low, range, MAX_US, &low_us)
        || !parse_number(line, "us", range ? text + length + 2 : low, low_us, MAX_US, &high_us)
        || (value_of(line, "one_in")
            && !parse_number(line, "one_in", value_of(line, "one_in"), 1, MAX_ONE_IN, &one_in))
        || (value_of(line, "after")
            && !parse_number(line, "after", value_of(line, "after"), 1, MAX_ONE_IN, &after))
        || (value_of(line, "alike")
            && !parse_number(line, "alike", value_of(line, "alike"), 1, MAX_ONE_IN, &alike))
        || (value_of(line, "meets")
            && !parse_number(line, "meets", value_of(line, "meets"), 2, MAX_GPUS, &meets))
        || (value_of(line, "gpu") && !parse_number(line, "gpu", value_of(line, "gpu"), 0, MAX_US, &gpu)))
        return false;
    if (node->kernel_count == MAX_KERNELS)
        return refuse(line, "more than %d kernels", MAX_KERNELS);
    kernel.low_ns = 1000 * (uint64_t)low_us;
    kernel.high_ns = 1000 * (uint64_t)high_us;
    kernel.high_one_in = (unsigned)one_in;
    kernel.high_after = (unsigned)after;
    kernel.alike = (unsigned)alike;
    kernel.gpu = gpu;
    kernel.meets = (unsigned)meets;
    node->kernels[node->kernel_count++] = kernel;
    return true;
}

bool parse_clock(const struct line *line, struct sim_node *node)
{
    return parse_choice(line, "real", "virtual", &node->virtual_clock);
}

bool parse_green_contexts(const struct line *line, struct sim_node *node)
{
    return parse_choice(line, "same", "apart", &node->green_apart);
}

bool parse_absent(const struct line *line, struct sim_node *node)
{
    if (node->absent_count == MAX_ABSENT)
        return refuse(line, "more than %d absent functions", MAX_ABSENT);
    return copy_text(line, "call", value_of(line, "call"), node->absent[node->absent_count++],
                     sizeof node->absent[0]);
}
