/* The grammar of the configuration (described in node.h): text -> struct sim_node. Pure. */
#include "../nvml_abi.h"
#include "node.h"
#include "node_execution.h"
#include "node_words.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int find_gpu(const struct sim_node *node, const char *text)
{
    char *end;
    long number = strtol(text, &end, 10);
    bool is_number = end != text && *end == '\0';
    for (size_t i = 0; i < node->gpu_count; i++)
        if (is_number ? node->gpus[i].number == number : strcmp(node->gpus[i].uuid, text) == 0)
            return (int)i;
    return -1;
}

/* The GPU that `gpu=` names. Events of a GPU that is not there are no mistake: it may have been taken out. */
static bool gpu_of(const struct line *line, const struct sim_node *node, bool must_exist, int *gpu)
{
    const char *text = value_of(line, "gpu");
    if (!text)
        return refuse(line, "gpu= is missing");
    *gpu = find_gpu(node, text);
    return *gpu >= 0 || !must_exist || refuse(line, "there is no gpu %s", text);
}

/* --- statements ----------------------------------------------------------------------------------------- */

static bool parse_driver_version(const struct line *line, struct sim_node *node)
{
    return copy_text(line, "driver_version", line->words[1], node->driver_version,
                     sizeof node->driver_version);
}

static bool parse_cuda_version(const struct line *line, struct sim_node *node)
{
    long version;
    if (!parse_number(line, "cuda_version", line->words[1], 1000, 99999, &version))
        return false;
    node->cuda_version = (int)version;
    return true;
}

static bool parse_driver(const struct line *line, struct sim_node *node)
{
    static const char *const states[] = {"ok", "absent", "mismatch"};
    for (size_t i = 0; i < sizeof states / sizeof *states; i++) {
        if (strcmp(line->words[1], states[i]) == 0) {
            node->driver = (enum sim_driver)i;
            return true;
        }
    }
    return refuse(line, "driver must be ok, absent or mismatch");
}

static bool parse_capability(const struct line *line, struct sim_gpu *gpu)
{
    const char *text = value_of(line, "cc");
    if (!text)
        text = "8.0";
    char rest;
    if (sscanf(text, "%2u.%2u%c", &gpu->cc_major, &gpu->cc_minor, &rest) != 2)
        return refuse(line, "cc must look like 8.6");
    return true;
}

static bool parse_event_types(const struct line *line, struct sim_gpu *gpu)
{
    const char *text = value_of(line, "events");
    if (!text)
        text = "xid,ecc";
    if (strstr(text, "xid"))
        gpu->event_types |= NVML_EVENT_XID_CRITICAL;
    if (strstr(text, "ecc"))
        gpu->event_types |= NVML_EVENT_SINGLE_BIT_ECC | NVML_EVENT_DOUBLE_BIT_ECC;
    return gpu->event_types || strcmp(text, "none") == 0
        || refuse(line, "events must be xid, ecc, xid,ecc or none");
}

static bool parse_gpu(const struct line *line, struct sim_node *node)
{
    struct sim_gpu gpu = {0};
    long memory_mib, reserved_mib, numa, minor, busy, memory_busy, context_mib, context_ms, module_mib,
        pool_step_mib, page_mib, compute_mode;
    char default_bus[32], default_serial[32];
    if (!parse_number(line, "gpu", line->words[1], 0, 4095, &gpu.number))
        return false;
    snprintf(default_bus, sizeof default_bus, "00000000:%02lX:00.0", (0x10 + gpu.number) & 0xFF);
    snprintf(default_serial, sizeof default_serial, "%013ld", 1320000000000 + gpu.number);
    const char *mig = value_of(line, "mig");
    if (mig && strcmp(mig, "on") != 0 && strcmp(mig, "off") != 0)
        return refuse(line, "mig must be on or off");
    gpu.mig = gpu.pending_mig = mig && strcmp(mig, "on") == 0;
    if (!copy_text(line, "uuid", value_of(line, "uuid"), gpu.uuid, sizeof gpu.uuid)
        || !copy_or(line, "name", "NVIDIA Simulated GPU", gpu.name, sizeof gpu.name)
        || !copy_or(line, "bus", default_bus, gpu.bus_id, sizeof gpu.bus_id)
        || !copy_or(line, "serial", default_serial, gpu.serial, sizeof gpu.serial)
        || !number_or_unsupported(line, "memory_mib", 1L << 30, 0, &memory_mib)
        || !number_of(line, "reserved_mib", 0, 1L << 20, 0, &reserved_mib)
        || !number_or_unsupported(line, "numa", 1023, 0, &numa)
        || !number_of(line, "minor", 0, 4095, gpu.number, &minor)
        || !number_of(line, "compute_mode", 0, 3, 0, &compute_mode)
        || !number_of(line, "gpu_percent", 0, 100, 0, &busy)
        || !number_of(line, "memory_percent", 0, 100, 0, &memory_busy)
        || !number_of(line, "context_mib", 0, 1L << 20, 0, &context_mib)
        || !number_of(line, "context_ms", 0, 10000, 0, &context_ms)
        || !number_of(line, "module_mib", 0, 1L << 20, 0, &module_mib)
        || !number_of(line, "pool_step_mib", 0, 1L << 20, 32, &pool_step_mib)
        || !number_of(line, "page_mib", 0, 1L << 10, 0, &page_mib) || !parse_capability(line, &gpu)
        || !parse_event_types(line, &gpu))
        return false;
    unsigned part;
    char rest;
    if (sscanf(gpu.bus_id, "%8x:%2x:%2x.%1x%c", &part, &part, &part, &part, &rest) != 4)
        return refuse(line, "bus must look like 00000000:17:00.0");
    if (find_gpu(node, line->words[1]) >= 0 || sim_node_find(node, gpu.uuid) >= 0)
        return refuse(line, "gpu %ld or its uuid is already there", gpu.number);
    if (node->gpu_count == MAX_GPUS)
        return refuse(line, "more than %d gpus", MAX_GPUS);
    gpu.memory_mib = memory_mib;
    gpu.reserved_mib = reserved_mib;
    gpu.numa_node = (int)numa;
    gpu.minor_number = (unsigned)minor;
    gpu.compute_mode = (unsigned)compute_mode;
    gpu.gpu_percent = (unsigned)busy;
    gpu.memory_percent = (unsigned)memory_busy;
    gpu.context_mib = (uint64_t)context_mib;
    gpu.context_ms = context_ms;
    gpu.module_mib = (uint64_t)module_mib;
    gpu.pool_step_mib = (uint64_t)pool_step_mib;
    gpu.page_mib = (uint64_t)page_mib;
    node->gpus[node->gpu_count++] = gpu;
    return true;
}

static bool parse_mig(const struct line *line, struct sim_node *node)
{
    int gpu = find_gpu(node, line->words[1]);
    long position, gpu_instance, compute_instance, memory_mib;
    if (gpu < 0 || !node->gpus[gpu].mig)
        return refuse(line, "there is no gpu %s with mig=on", line->words[1]);
    if (!parse_number(line, "the position", line->count > 2 ? line->words[2] : NULL, 0, MAX_MIGS - 1,
                      &position)
        || !number_of(line, "gi", 0, 255, position, &gpu_instance)
        || !number_of(line, "ci", 0, 255, 0, &compute_instance)
        || !number_of(line, "memory_mib", 0, 1L << 30, 0, &memory_mib))
        return false;
    struct sim_mig *mig = &node->gpus[gpu].migs[position];
    mig->present = true;
    mig->gpu_instance = (unsigned)gpu_instance;
    mig->compute_instance = (unsigned)compute_instance;
    mig->memory_mib = (uint64_t)memory_mib;
    mig->slices = mig->compute_slices = 1;
    mig->multiprocessors = 14;
    return copy_text(line, "uuid", value_of(line, "uuid"), mig->uuid, sizeof mig->uuid);
}

static bool add_event(const struct line *line, struct sim_node *node, unsigned long long type, long data)
{
    long number, gpu_instance, compute_instance;
    struct sim_event event = {.type = type, .data = (unsigned long long)data};
    if (!parse_number(line, "the event number", line->words[1], 1, INT32_MAX, &number)
        || !number_of(line, "gi", 0, 255, -1, &gpu_instance)
        || !number_of(line, "ci", 0, 255, -1, &compute_instance) || !gpu_of(line, node, false, &event.gpu))
        return false;
    if (node->event_count == MAX_EVENTS)
        return refuse(line, "more than %d events", MAX_EVENTS);
    /* An event set remembers the last number it gave out: an event out of order would never be delivered. */
    if (node->event_count > 0 && (uint64_t)number <= node->events[node->event_count - 1].number)
        return refuse(line, "the event number %ld must be above that of the event before it", number);
    event.number = (uint64_t)number;
    event.gpu_instance = gpu_instance < 0 ? NVML_NO_INSTANCE : (unsigned)gpu_instance;
    event.compute_instance = compute_instance < 0 ? NVML_NO_INSTANCE : (unsigned)compute_instance;
    node->events[node->event_count++] = event;
    return true;
}

static bool parse_xid(const struct line *line, struct sim_node *node)
{
    long code;
    return parse_number(line, "code", value_of(line, "code"), 1, 65535, &code)
        && add_event(line, node, NVML_EVENT_XID_CRITICAL, code);
}

static bool parse_ecc(const struct line *line, struct sim_node *node)
{
    const char *kind = value_of(line, "kind");
    if (!kind || (strcmp(kind, "single") != 0 && strcmp(kind, "double") != 0))
        return refuse(line, "kind must be single or double");
    bool single = strcmp(kind, "single") == 0;
    return add_event(line, node, single ? NVML_EVENT_SINGLE_BIT_ECC : NVML_EVENT_DOUBLE_BIT_ECC, 0);
}

static bool parse_lost(const struct line *line, struct sim_node *node)
{
    int gpu;
    if (!gpu_of(line, node, false, &gpu))
        return false;
    if (gpu >= 0)
        node->gpus[gpu].lost = true;
    return true;
}

static bool parse_hang(const struct line *line, struct sim_node *node)
{
    (void)line;
    node->hang = true;
    return true;
}

static bool parse_hold(const struct line *line, struct sim_node *node)
{
    return copy_text(line, "call", value_of(line, "call"), node->held, sizeof node->held);
}

static bool parse_enumeration(const struct line *line, struct sim_node *node)
{
    return parse_choice(line, "live", "fixed", &node->fixed_enumeration);
}

static bool parse_pids(const struct line *line, struct sim_node *node)
{
    return parse_choice(line, "visible", "hidden", &node->hidden_pids);
}

static bool parse_fail(const struct line *line, struct sim_node *node)
{
    long code;
    struct sim_failure failure = {.gpu = -1};
    if (!copy_text(line, "call", value_of(line, "call"), failure.call, sizeof failure.call)
        || !parse_number(line, "code", value_of(line, "code"), 1, 999, &code)
        || (value_of(line, "gpu") && !gpu_of(line, node, true, &failure.gpu)))
        return false;
    if (node->failure_count == MAX_FAILURES)
        return refuse(line, "more than %d failures", MAX_FAILURES);
    failure.code = (int)code;
    node->failures[node->failure_count++] = failure;
    return true;
}

static bool parse_process(const struct line *line, struct sim_node *node)
{
    long pid, memory_mib, sm_percent, gpu_instance, compute_instance;
    struct sim_process process = {.graphics = value_of(line, "type")
                                      && strcmp(value_of(line, "type"), "graphics") == 0};
    if (!gpu_of(line, node, true, &process.gpu)
        || !parse_number(line, "pid", value_of(line, "pid"), 1, INT32_MAX, &pid)
        || !number_of(line, "memory_mib", 0, 1L << 30, 0, &memory_mib)
        || !number_of(line, "from_mib", 0, 1L << 30, 0, &process.from_mib)
        || !number_of(line, "gi", 0, 255, -1, &gpu_instance)
        || !number_of(line, "ci", 0, 255, -1, &compute_instance)
        || !number_of(line, "sm_percent", 0, 100, 0, &sm_percent))
        return false;
    if (node->process_count == MAX_PROCESSES)
        return refuse(line, "more than %d processes", MAX_PROCESSES);
    process.pid = (unsigned)pid;
    process.memory_mib = (uint64_t)memory_mib;
    process.sm_percent = (unsigned)sm_percent;
    process.gpu_instance = gpu_instance < 0 ? NVML_NO_INSTANCE : (unsigned)gpu_instance;
    process.compute_instance = compute_instance < 0 ? NVML_NO_INSTANCE : (unsigned)compute_instance;
    node->processes[node->process_count++] = process;
    return true;
}

static bool add_pair(const struct line *line, struct sim_node *node, struct sim_pair pair)
{
    const char *second = line->count > 2 ? line->words[2] : "";
    pair.first = find_gpu(node, line->words[1]);
    pair.second = find_gpu(node, second);
    bool to_switch = pair.links > 0 && strcmp(second, "switch") == 0;
    if (pair.first < 0 || pair.first == pair.second || (pair.second < 0 && !to_switch))
        return refuse(line, "%s must be followed by two different gpus", line->words[0]);
    if (node->pair_count == MAX_PAIRS)
        return refuse(line, "more than %d pairs", MAX_PAIRS);
    node->pairs[node->pair_count++] = pair;
    return true;
}

static bool parse_nvlink(const struct line *line, struct sim_node *node)
{
    long links, back;
    if (!parse_number(line, "links", value_of(line, "links"), 1, 18, &links)
        || !number_of(line, "back", 0, 18, links, &back))
        return false;
    return add_pair(line, node,
                    (struct sim_pair){.level = -1, .links = (unsigned)links, .links_back = (unsigned)back});
}

static bool parse_topology(const struct line *line, struct sim_node *node)
{
    static const char *const levels[] = {"internal", "single", "multiple", "hostbridge", "node", "system"};
    const char *level = value_of(line, "level");
    for (size_t i = 0; level && i < sizeof levels / sizeof *levels; i++)
        if (strcmp(level, levels[i]) == 0)
            return add_pair(line, node, (struct sim_pair){.level = (int)i * 10});
    return refuse(line, "level must be internal, single, multiple, hostbridge, node or system");
}

static const struct {
    const char *word;
    size_t words; /* at least */
    bool (*parse)(const struct line *line, struct sim_node *node);
} statements[] = {
    {"driver_version", 2, parse_driver_version},
    {"cuda_version", 2, parse_cuda_version},
    {"driver", 2, parse_driver},
    {"gpu", 2, parse_gpu},
    {"mig", 3, parse_mig},
    {"xid", 2, parse_xid},
    {"ecc", 2, parse_ecc},
    {"lost", 2, parse_lost},
    {"enumeration", 2, parse_enumeration},
    {"hang", 1, parse_hang},
    {"pids", 2, parse_pids},
    {"fail", 2, parse_fail},
    {"hold", 2, parse_hold},
    {"process", 2, parse_process},
    {"nvlink", 3, parse_nvlink},
    {"topology", 3, parse_topology},
    {"kernel_us", 2, parse_execution},
    {"slice_us", 2, parse_execution},
    {"launch_us", 2, parse_execution},
    {"event_ns", 2, parse_execution},
    {"event_step_ns", 2, parse_execution},
    {"queue_depth", 2, parse_execution},
    {"connections", 2, parse_execution},
    {"drift_ppm", 2, parse_execution},
    {"kernel", 3, parse_kernel},
    {"clock", 2, parse_clock},
    {"absent", 2, parse_absent},
    {"green_contexts", 2, parse_green_contexts},
};

static bool parse_line(struct line *line, char *text, struct sim_node *node)
{
    if (!split(line, text))
        return false;
    if (line->count == 0)
        return true;
    for (size_t i = 0; i < sizeof statements / sizeof *statements; i++) {
        if (strcmp(line->words[0], statements[i].word) != 0)
            continue;
        if (line->count < statements[i].words)
            return refuse(line, "%s needs more words", line->words[0]);
        return statements[i].parse(line, node);
    }
    return refuse(line, "unknown statement %s", line->words[0]);
}

/* `gpu` lines come first whatever their place, so that the other lines can name them; sorted by number. */
static bool is_gpu_line(const char *text)
{
    text += strspn(text, " \t");
    return strncmp(text, "gpu", 3) == 0 && (text[3] == ' ' || text[3] == '\t');
}

static int by_number(const void *a, const void *b)
{
    const struct sim_gpu *first = a, *second = b;
    return (first->number > second->number) - (first->number < second->number);
}

static bool parse_pass(struct sim_node *node, char *text, bool gpu_lines, char *problem, size_t problem_bytes)
{
    unsigned number = 0;
    for (char *next; text; text = next) {
        next = strchr(text, '\n');
        if (next)
            *next++ = '\0';
        struct line line = {.problem = problem, .problem_bytes = problem_bytes, .number = ++number};
        if (is_gpu_line(text) == gpu_lines && !parse_line(&line, text, node))
            return false;
    }
    return true;
}

static unsigned line_at_end(const char *text)
{
    unsigned number = 1;
    for (; *text; text++)
        number += *text == '\n';
    return number;
}

bool sim_node_parse(struct sim_node *node, char *text, size_t length, char *problem, size_t problem_bytes)
{
    memset(node, 0, sizeof *node);
    if (strlen(text) < length) { /* a C string would end here, and with it the configuration */
        snprintf(problem, problem_bytes, "line %u: a NUL byte", line_at_end(text));
        return false;
    }
    strcpy(node->driver_version, "570.86.15");
    node->cuda_version = 12080;
    node->slice_us = 2000;
    node->launch_us = 2;
    node->queue_depth = 1024;
    char *copy = strdup(text); /* each pass cuts its text to pieces */
    if (!copy) {
        snprintf(problem, problem_bytes, "not enough memory");
        return false;
    }
    bool good = parse_pass(node, copy, true, problem, problem_bytes);
    free(copy);
    if (!good)
        return false;
    qsort(node->gpus, node->gpu_count, sizeof *node->gpus, by_number);
    return parse_pass(node, text, false, problem, problem_bytes);
}
