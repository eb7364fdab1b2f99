#include "contexts.h"
#include "charge.h"
#include "devices.h"
#include "settings.h"
#include "table.h"
#include "wrap.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_ORDINALS = 64 };

struct context {
    struct entry entry;
    int place;
    uint64_t bytes;
};

struct module {
    struct entry entry;
    int place;
    uint64_t bytes;
    const void *context;
};

struct primary {
    unsigned retained;
    CUcontext context;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t fork_once = PTHREAD_ONCE_INIT;
static struct table contexts, modules;
static struct primary primaries[MAX_ORDINALS];

static void forget_after_fork(void)
{
    pthread_mutex_init(&lock, NULL);
    memset(&contexts, 0, sizeof contexts);
    memset(&modules, 0, sizeof modules);
    memset(primaries, 0, sizeof primaries);
}

static void watch_forks(void)
{
    pthread_atfork(NULL, NULL, forget_after_fork);
}

static uint64_t key_of(const void *handle)
{
    return (uint64_t)(uintptr_t)handle;
}

/* --- contexts ------------------------------------------------------------------------------------------- */

void context_made(const void *handle, CUdevice device, uint64_t bytes)
{
    struct context *context = bytes ? calloc(1, sizeof *context) : NULL;
    if (!context)
        return; /* costs nothing; or is charged for ever, there being no memory */
    pthread_once(&fork_once, watch_forks);
    context->place = place_of_device(device);
    context->bytes = bytes;
    pthread_mutex_lock(&lock);
    table_add(&contexts, &context->entry, key_of(handle));
    pthread_mutex_unlock(&lock);
}

struct context *context_ending(const void *handle)
{
    pthread_mutex_lock(&lock);
    struct entry *entry = table_find(&contexts, key_of(handle));
    if (entry)
        table_remove(&contexts, entry);
    pthread_mutex_unlock(&lock);
    return (struct context *)entry;
}

/* Take out one of the modules of a context. */
static struct module *module_of(const void *context)
{
    pthread_mutex_lock(&lock);
    struct module *module = (struct module *)table_next(&modules, NULL);
    while (module && module->context != context)
        module = (struct module *)table_next(&modules, &module->entry);
    if (module)
        table_remove(&modules, &module->entry);
    pthread_mutex_unlock(&lock);
    return module;
}

static void end_modules(const void *context)
{
    struct module *module;
    while ((module = module_of(context)))
        module_unloaded(module, CUDA_SUCCESS);
}

CUresult context_ended(struct context *context, const void *handle, CUresult result)
{
    if (result == CUDA_SUCCESS) {
        end_modules(handle);
        wrap_context_ended(handle);
    }
    if (context && result == CUDA_SUCCESS) {
        charge_back(context->place, CHARGE_CONTEXT, context->bytes);
        free(context);
    } else if (context) {
        pthread_mutex_lock(&lock);
        table_add(&contexts, &context->entry, context->entry.key);
        pthread_mutex_unlock(&lock);
    }
    return result;
}

void context_grew(const void *handle, CUdevice device, int64_t bytes)
{
    uint64_t less = bytes < 0 ? (uint64_t)-bytes : 0;
    int place = -1;
    pthread_mutex_lock(&lock);
    struct context *context = (struct context *)table_find(&contexts, key_of(handle));
    if (context) {
        less = less < context->bytes ? less : context->bytes;
        context->bytes = context->bytes + (bytes > 0 ? (uint64_t)bytes : 0) - less;
        place = context->place;
    }
    pthread_mutex_unlock(&lock);
    charge_back(place, CHARGE_CONTEXT, less);
    if (!context && bytes > 0)
        context_made(handle, device, (uint64_t)bytes);
}

/* --- primary contexts ----------------------------------------------------------------------------------- */

bool primary_retaining(CUdevice device)
{
    if (device < 0 || device >= MAX_ORDINALS)
        return false;
    pthread_once(&fork_once, watch_forks);
    pthread_mutex_lock(&lock);
    bool first = primaries[device].retained++ == 0;
    pthread_mutex_unlock(&lock);
    return first;
}

void primary_retained(CUdevice device, CUcontext context, bool first, CUresult result, uint64_t bytes)
{
    if (device < 0 || device >= MAX_ORDINALS)
        return;
    pthread_mutex_lock(&lock);
    if (result != CUDA_SUCCESS)
        primaries[device].retained -= primaries[device].retained > 0;
    else
        primaries[device].context = context;
    pthread_mutex_unlock(&lock);
    if (result == CUDA_SUCCESS && first)
        context_made(context, device, bytes);
}

CUcontext primary_releasing(CUdevice device, bool *last)
{
    *last = true;
    if (device < 0 || device >= MAX_ORDINALS)
        return NULL;
    pthread_mutex_lock(&lock);
    CUcontext context = primaries[device].context;
    *last = primaries[device].retained <= 1;
    pthread_mutex_unlock(&lock);
    return context;
}

/* Whether somebody holds it whose retain we did not see. */
static bool still_active(CUdevice device)
{
    const struct real_cuda *real = real_cuda();
    unsigned flags;
    int active = 0;
    return real && real->cuDevicePrimaryCtxGetState
        && real->cuDevicePrimaryCtxGetState(device, &flags, &active) == CUDA_SUCCESS && active;
}

bool primary_released(CUdevice device, bool last, bool reset)
{
    if (device < 0 || device >= MAX_ORDINALS)
        return false;
    pthread_mutex_lock(&lock);
    struct primary *primary = &primaries[device];
    CUcontext ended = NULL;
    primary->retained -= primary->retained > 0;
    if (reset)
        primary->retained = 0;
    if (primary->retained == 0)
        ended = primary->context;
    pthread_mutex_unlock(&lock);
    if (!ended)
        return last; /* another thread retained it meanwhile: before it ended, or anew */
    if (reset || !still_active(device)) {
        context_ended(context_ending(ended), ended, CUDA_SUCCESS);
        return true;
    }
    pthread_mutex_lock(&lock);
    bool anew = primary->retained > 0; /* by another thread, since: what was there before has ended */
    pthread_mutex_unlock(&lock);
    return anew;
}

/* --- modules -------------------------------------------------------------------------------------------- */

void module_loaded(const void *handle, const void *context, CUdevice device, uint64_t bytes)
{
    struct module *module = bytes ? calloc(1, sizeof *module) : NULL;
    if (!module)
        return;
    pthread_once(&fork_once, watch_forks);
    module->place = place_of_device(device);
    module->bytes = bytes;
    module->context = context;
    pthread_mutex_lock(&lock);
    table_add(&modules, &module->entry, key_of(handle));
    pthread_mutex_unlock(&lock);
}

struct module *module_unloading(const void *handle)
{
    pthread_mutex_lock(&lock);
    struct entry *entry = table_find(&modules, key_of(handle));
    if (entry)
        table_remove(&modules, entry);
    pthread_mutex_unlock(&lock);
    return (struct module *)entry;
}

CUresult module_unloaded(struct module *module, CUresult result)
{
    if (!module)
        return result;
    if (result == CUDA_SUCCESS) {
        charge_back(module->place, CHARGE_MODULE, module->bytes);
        free(module);
        return result;
    }
    pthread_mutex_lock(&lock);
    table_add(&modules, &module->entry, module->entry.key);
    pthread_mutex_unlock(&lock);
    return result;
}
