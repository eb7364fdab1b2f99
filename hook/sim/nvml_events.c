/* Simulated NVML: event sets. Each set delivers each event once, in order of number, and none that was there
 * before the GPU was registered. A new line in the configuration wakes a waiting set through inotify; where
 * inotify is not to be had, the file is looked at 50 times a second.
 */
#include "nvml_call.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <time.h>
#include <unistd.h>

enum { BLIND_POLL_MS = 20, WATCHED_POLL_MS = 1000 };

struct registration {
    char uuid[TEXT_BYTES];
    unsigned long long types;
    uint64_t since; /* events up to this number are older than the registration */
};

struct nvmlEventSet_st {
    pthread_mutex_t lock;
    struct registration registrations[MAX_GPUS];
    size_t count;
    uint64_t delivered; /* number of the last event given out */
    int inotify_fd; /* -1: none */
};

static int watch_configuration(void)
{
    char directory[4096];
    const char *path = sim_node_path();
    const char *slash = path ? strrchr(path, '/') : NULL;
    size_t length = slash ? (size_t)(slash - path) : 0;
    if (length >= sizeof directory)
        return -1;
    memcpy(directory, length ? path : ".", length ? length : 1);
    directory[length ? length : 1] = '\0';
    int fd = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
    if (fd >= 0 && inotify_add_watch(fd, directory, IN_MOVED_TO | IN_CLOSE_WRITE) < 0) {
        close(fd);
        return -1;
    }
    return fd;
}

EXPORT nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *set)
{
    struct call call;
    nvmlReturn_t result = call_begin(&call, __func__);
    if (result == NVML_SUCCESS && !set)
        result = NVML_ERROR_INVALID_ARGUMENT;
    if (result == NVML_SUCCESS) {
        *set = calloc(1, sizeof **set);
        result = *set ? NVML_SUCCESS : NVML_ERROR_MEMORY;
    }
    if (result == NVML_SUCCESS) {
        pthread_mutex_init(&(*set)->lock, NULL);
        (*set)->inotify_fd = watch_configuration();
    }
    return call_end(&call, result);
}

EXPORT nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set)
{
    struct call call;
    nvmlReturn_t result = call_begin(&call, __func__);
    if (result == NVML_ERROR_UNINITIALIZED || !set)
        return call_end(&call, set ? result : NVML_ERROR_INVALID_ARGUMENT);
    if (set->inotify_fd >= 0)
        close(set->inotify_fd);
    pthread_mutex_destroy(&set->lock);
    free(set);
    return call_end(&call, NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceGetSupportedEventTypes(nvmlDevice_t device, unsigned long long *types)
{
    struct call call;
    nvmlReturn_t result = call_begin_device(&call, __func__, device);
    if (result == NVML_SUCCESS && !types)
        result = NVML_ERROR_INVALID_ARGUMENT;
    if (result == NVML_SUCCESS)
        *types = call.gpu->event_types;
    return call_end(&call, result);
}

static uint64_t newest_event(const struct sim_node *node)
{
    uint64_t newest = 0;
    for (size_t i = 0; i < node->event_count; i++)
        if (node->events[i].number > newest)
            newest = node->events[i].number;
    return newest;
}

static nvmlReturn_t add_registration(nvmlEventSet_t set, const char *uuid, unsigned long long types,
                                     uint64_t since)
{
    for (size_t i = 0; i < set->count; i++) {
        if (strcmp(set->registrations[i].uuid, uuid) == 0) {
            set->registrations[i].types |= types;
            return NVML_SUCCESS;
        }
    }
    if (set->count == MAX_GPUS)
        return NVML_ERROR_MEMORY;
    struct registration *fresh = &set->registrations[set->count++];
    memcpy(fresh->uuid, uuid, TEXT_BYTES);
    fresh->types = types;
    fresh->since = since;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long types,
                                             nvmlEventSet_t set)
{
    struct call call;
    nvmlReturn_t result = call_begin_device(&call, __func__, device);
    if (result == NVML_SUCCESS && !set)
        result = NVML_ERROR_INVALID_ARGUMENT;
    if (result == NVML_SUCCESS && (types == 0 || types & ~call.gpu->event_types))
        result = NVML_ERROR_NOT_SUPPORTED;
    if (result == NVML_SUCCESS) {
        pthread_mutex_lock(&set->lock);
        result = add_registration(set, call.gpu->uuid, types, newest_event(call.node));
        pthread_mutex_unlock(&set->lock);
    }
    return call_end(&call, result);
}

static const struct registration *registration_of(nvmlEventSet_t set, const char *uuid)
{
    for (size_t i = 0; i < set->count; i++)
        if (strcmp(set->registrations[i].uuid, uuid) == 0)
            return &set->registrations[i];
    return NULL;
}

static bool wanted(nvmlEventSet_t set, const struct sim_node *node, const struct sim_event *event)
{
    if (event->gpu < 0 || event->number <= set->delivered)
        return false;
    const struct registration *registration = registration_of(set, node->gpus[event->gpu].uuid);
    return registration && registration->types & event->type && event->number > registration->since;
}

static const struct sim_event *next_event(nvmlEventSet_t set, const struct sim_node *node)
{
    const struct sim_event *next = NULL;
    for (size_t i = 0; i < node->event_count; i++)
        if (wanted(set, node, &node->events[i]) && (!next || node->events[i].number < next->number))
            next = &node->events[i];
    return next;
}

static bool any_lost(nvmlEventSet_t set, const struct sim_node *node)
{
    for (size_t i = 0; i < set->count; i++) {
        int position = sim_node_find(node, set->registrations[i].uuid);
        if (position < 0 || node->gpus[position].lost)
            return true;
    }
    return false;
}

/* Those that are listed, of this life and of earlier ones alike. */
EXPORT nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, int kind, int counter,
                                                unsigned long long *count)
{
    enum { CORRECTED, UNCORRECTED, KINDS };
    static const unsigned long long types[KINDS] = {NVML_EVENT_SINGLE_BIT_ECC, NVML_EVENT_DOUBLE_BIT_ECC};
    struct call call;
    nvmlReturn_t result = call_begin_device(&call, __func__, device);
    if (result == NVML_SUCCESS && (!count || kind < 0 || kind >= KINDS || counter < 0 || counter > 1))
        result = NVML_ERROR_INVALID_ARGUMENT;
    if (result == NVML_SUCCESS && !(call.gpu->event_types & types[kind]))
        result = NVML_ERROR_NOT_SUPPORTED;
    if (result == NVML_SUCCESS) {
        *count = 0;
        for (size_t i = 0; i < call.node->event_count; i++) {
            const struct sim_event *event = &call.node->events[i];
            *count +=
                event->type == types[kind] && event->gpu >= 0 && &call.node->gpus[event->gpu] == call.gpu;
        }
    }
    return call_end(&call, result);
}

/* The next event, if there is one now. NVML_ERROR_TIMEOUT: not yet. */
static nvmlReturn_t take_event(nvmlEventSet_t set, const struct sim_node *node, struct nvml_event_data *data)
{
    pthread_mutex_lock(&set->lock);
    const struct sim_event *event = next_event(set, node);
    nvmlReturn_t result = event ? NVML_SUCCESS
        : any_lost(set, node)   ? NVML_ERROR_GPU_IS_LOST
                                : NVML_ERROR_TIMEOUT;
    if (event) {
        set->delivered = event->number;
        *data = (struct nvml_event_data){.device = handle_of(node->gpus[event->gpu].uuid),
                                         .event_type = event->type,
                                         .event_data = event->data,
                                         .gpu_instance_id = event->gpu_instance,
                                         .compute_instance_id = event->compute_instance};
    }
    pthread_mutex_unlock(&set->lock);
    return result;
}

static int64_t now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static void sleep_until_change(int inotify_fd, int64_t left_ms)
{
    int64_t longest_ms = inotify_fd >= 0 ? WATCHED_POLL_MS : BLIND_POLL_MS;
    struct pollfd changed = {.fd = inotify_fd, .events = POLLIN}; /* poll ignores a negative fd */
    char notes[4096];
    if (poll(&changed, 1, (int)(left_ms < longest_ms ? left_ms : longest_ms)) > 0)
        while (read(inotify_fd, notes, sizeof notes) > 0) { }
}

EXPORT nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, struct nvml_event_data *data, unsigned timeout_ms)
{
    if (!set || !data)
        return NVML_ERROR_INVALID_ARGUMENT;
    int64_t deadline_ms = now_ms() + timeout_ms;
    while (true) {
        struct call call;
        nvmlReturn_t result = call_begin(&call, __func__);
        if (result == NVML_SUCCESS)
            result = take_event(set, call.node, data);
        call_end(&call, result);
        int64_t left_ms = deadline_ms - now_ms();
        if (result != NVML_ERROR_TIMEOUT || left_ms <= 0)
            return result;
        sleep_until_change(set->inotify_fd, left_ms);
    }
}

EXPORT nvmlReturn_t nvmlEventSetWait(nvmlEventSet_t set, struct nvml_event_data *data, unsigned timeout_ms)
{
    return nvmlEventSetWait_v2(set, data, timeout_ms);
}
