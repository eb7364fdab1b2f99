#include "contexts.h"
#include "devices.h"
#include "guesses.h"
#include "looks.h"
#include "loose.h"
#include "monotonic.h"
#include "settings.h"
#include "table.h"
#include "wrap.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_ORDINALS = 64 };

#define MAKING_NS UINT64_C(10000000000)
#define MAKING_LOOK_NS 200000

struct context {
    struct entry entry;
    int place;
    struct cost cost;
    CUdevice green_of; /* -1: it is not green */
    int users; /* besides who made it */
};

struct module {
    struct entry entry;
    int place;
    struct cost cost;
    const void *context;
};

struct primary {
    unsigned retained;
    bool making; /* the first retain is under way, and what it costs is being measured */
    bool reset; /* it was, and is retained: who retains it next makes it anew */
    CUcontext context; /* NULL: it has ended */
    unsigned long long id; /* no other context ever has it; 0: the driver does not tell */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t fork_once = PTHREAD_ONCE_INIT;
static struct table contexts, modules;
static struct primary primaries[MAX_ORDINALS];
static _Atomic unsigned own_made; /* contexts that are neither primary nor green, ever */
static _Atomic uint64_t primaries_made; /* bit n: that of ordinal n, ever */
static _Atomic bool green_made; /* ever: until then, who asks for the whole of a context takes no lock */

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

static void add(CUcontext handle, CUdevice device, struct cost cost, bool green)
{
    struct context *context = cost.bytes || green ? calloc(1, sizeof *context) : NULL;
    if (!context)
        return; /* costs nothing; or is charged for ever, there being no memory */
    pthread_once(&fork_once, watch_forks);
    context->place = place_of_device(device);
    context->cost = cost;
    context->green_of = green && device < MAX_ORDINALS ? device : -1;
    pthread_mutex_lock(&lock);
    table_add(&contexts, &context->entry, key_of(handle));
    if (green)
        loose_store(&green_made, true);
    pthread_mutex_unlock(&lock);
}

void context_made(CUcontext handle, CUdevice device, struct cost cost, bool green)
{
    if (!green)
        own_made++;
    add(handle, device, cost, green);
}

bool context_is_only(void)
{
    uint64_t made = loose_load(&primaries_made);
    return !(made & (made - 1)) && own_made <= !made;
}

/* Called with the lock held. */
static void take_contents(struct context_end *end, const void *context)
{
    struct entry *entry = table_next(&modules, NULL), *next;
    for (; entry; entry = next) {
        next = table_next(&modules, entry);
        if (((struct module *)entry)->context != context)
            continue;
        table_remove(&modules, entry);
        entry->next = (struct entry *)end->modules;
        end->modules = (struct module *)entry;
    }
    end->blocks = blocks_take_of(context);
}

/* Called with the lock held: they have ended, or are where they were. */
static void settle_contents(struct context_end *end, bool ended)
{
    struct module *module = end->modules, *next;
    for (; module; module = next) {
        next = (struct module *)module->entry.next;
        if (!ended) {
            table_add(&modules, &module->entry, module->entry.key);
            continue;
        }
        guesses_ended(module->place, CHARGE_MODULE, module->cost);
        free(module);
    }
    wrap_context_ended(end->blocks, ended);
}

void context_ending(struct context_end *end, const void *handle, bool owns)
{
    *end = (struct context_end){0};
    pthread_mutex_lock(&lock);
    end->account = (struct context *)table_find(&contexts, key_of(handle));
    if (end->account)
        table_remove(&contexts, &end->account->entry);
    if (owns)
        take_contents(end, handle);
    pthread_mutex_unlock(&lock);
    looks_calls(true);
}

CUcontext context_whole(CUcontext handle)
{
    if (!atomic_load_explicit(&green_made, memory_order_relaxed))
        return handle;
    pthread_mutex_lock(&lock);
    const struct context *context = (struct context *)table_find(&contexts, key_of(handle));
    if (context && context->green_of >= 0)
        handle = primaries[context->green_of].context;
    pthread_mutex_unlock(&lock);
    return handle;
}

CUdevice context_retains(const struct context *account)
{
    return account ? account->green_of : -1;
}

CUresult context_ended(struct context_end *end, CUresult result)
{
    struct context *context = end->account;
    bool ended = result == CUDA_SUCCESS;
    pthread_mutex_lock(&lock);
    settle_contents(end, ended);
    if (context && !ended)
        table_add(&contexts, &context->entry, context->entry.key);
    pthread_mutex_unlock(&lock);
    if (context && ended) {
        guesses_ended(context->place, CHARGE_CONTEXT, context->cost);
        free(context);
    }
    looks_calls(false);
    return result;
}

bool context_users(CUcontext handle, int more)
{
    int place = -1;
    if (more > 0)
        place_of_context(&place);
    pthread_once(&fork_once, watch_forks);
    pthread_mutex_lock(&lock);
    struct context *context = (struct context *)table_find(&contexts, key_of(handle));
    if (!context && more > 0 && (context = calloc(1, sizeof *context))) {
        *context = (struct context){.place = place, .green_of = -1};
        table_add(&contexts, &context->entry, key_of(handle));
    }
    bool stays = context && (context->green_of >= 0 || context->users + more >= 0);
    for (int i = 0; i < MAX_ORDINALS; i++)
        stays |= more < 0 && primaries[i].context == handle;
    if (stays && context)
        context->users += more;
    pthread_mutex_unlock(&lock);
    return stays;
}

void context_grew(CUcontext handle, CUdevice device, struct cost cost)
{
    pthread_mutex_lock(&lock);
    struct context *context = (struct context *)table_find(&contexts, key_of(handle));
    if (context) {
        context->cost.bytes += cost.bytes;
        context->cost.guessed_bytes += cost.guessed_bytes;
    }
    pthread_mutex_unlock(&lock);
    if (!context)
        add(handle, device, cost, false);
}

void context_doubted(CUcontext handle, uint64_t bytes)
{
    pthread_mutex_lock(&lock);
    struct context *context = (struct context *)table_find(&contexts, key_of(handle));
    if (context) {
        uint64_t sure = context->cost.bytes - context->cost.guessed_bytes;
        bytes = bytes < sure ? bytes : sure;
        context->cost.guessed_bytes += bytes;
        guesses_made(context->place, bytes);
    }
    pthread_mutex_unlock(&lock);
}

void context_shrank(CUcontext handle, uint64_t bytes)
{
    struct cost less = {0};
    int place = -1;
    pthread_mutex_lock(&lock);
    struct context *context = (struct context *)table_find(&contexts, key_of(handle));
    if (context) {
        struct cost *cost = &context->cost;
        less.bytes = bytes < cost->bytes ? bytes : cost->bytes;
        cost->bytes -= less.bytes;
        if (cost->guessed_bytes > cost->bytes) /* what was not guessed goes first: guesses stay in doubt */
            less.guessed_bytes = cost->guessed_bytes - cost->bytes;
        cost->guessed_bytes -= less.guessed_bytes;
        place = context->place;
    }
    pthread_mutex_unlock(&lock);
    guesses_ended(place, CHARGE_CONTEXT, less);
}

/* --- primary contexts ----------------------------------------------------------------------------------- */

bool primary_retaining(CUdevice device)
{
    if (device < 0 || device >= MAX_ORDINALS)
        return false;
    pthread_once(&fork_once, watch_forks);
    struct primary *primary = &primaries[device];
    uint64_t until_ns = monotonic_ns() + MAKING_NS;
    pthread_mutex_lock(&lock);
    /* Whoever comes second waits, as for the driver: else the context were made beside the measuring. */
    while (primary->making && monotonic_ns() < until_ns) {
        pthread_mutex_unlock(&lock);
        monotonic_sleep_until(monotonic_ns() + MAKING_LOOK_NS);
        pthread_mutex_lock(&lock);
    }
    bool first = primary->retained++ == 0 || primary->reset;
    primary->making |= first;
    pthread_mutex_unlock(&lock);
    return first;
}

/* Called with the lock held. The account stays for one that was made in its place without being measured. */
static void end_primary(struct primary *primary, bool keep_account)
{
    struct context_end end = {0};
    take_contents(&end, primary->context);
    settle_contents(&end, true);
    struct context *account =
        keep_account ? NULL : (struct context *)table_find(&contexts, key_of(primary->context));
    primary->context = NULL;
    if (!account)
        return;
    table_remove(&contexts, &account->entry);
    guesses_ended(account->place, CHARGE_CONTEXT, account->cost);
    free(account);
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

/* Nobody retains it any more: whether it has ended, or may have. */
static bool end_unless_held(CUdevice device)
{
    bool active = still_active(device);
    pthread_mutex_lock(&lock);
    struct primary *primary = &primaries[device];
    bool anew = primary->retained > 0; /* by another thread, since, which looks after what was there */
    if (!anew && !active && primary->context)
        end_primary(primary, false);
    pthread_mutex_unlock(&lock);
    return anew || !active;
}

static unsigned long long id_of(CUcontext context)
{
    const struct real_cuda *real = real_cuda();
    unsigned long long id = 0;
    return real && real->cuCtxGetId && real->cuCtxGetId(context, &id) == CUDA_SUCCESS ? id : 0;
}

/* What was retained may be another than what was there, which a thread has released meanwhile. */
static void replace(CUdevice device, CUcontext context, bool first)
{
    unsigned long long id = id_of(context);
    pthread_mutex_lock(&lock);
    struct primary *primary = &primaries[device];
    CUcontext before = primary->context;
    if (before && (before != context || (primary->id && id && primary->id != id))) {
        struct entry *account = table_find(&contexts, key_of(before));
        end_primary(primary, !first);
        if (account && !first) {
            table_remove(&contexts, account);
            table_add(&contexts, account, key_of(context));
        }
    }
    primary->context = context;
    primary->id = id;
    primary->reset = false;
    pthread_mutex_unlock(&lock);
}

void primary_retained(CUdevice device, CUcontext context, bool first, CUresult result, struct cost cost)
{
    if (device < 0 || device >= MAX_ORDINALS)
        return;
    if (result == CUDA_SUCCESS) {
        primaries_made |= UINT64_C(1) << device;
        replace(device, context, first);
        if (first)
            context_grew(context, device, cost);
    }
    pthread_mutex_lock(&lock);
    if (first)
        primaries[device].making = false;
    if (result != CUDA_SUCCESS)
        primaries[device].retained -= primaries[device].retained > 0;
    bool over = primaries[device].retained == 0 && primaries[device].context;
    pthread_mutex_unlock(&lock);
    if (over && result != CUDA_SUCCESS)
        end_unless_held(device);
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

bool primary_released(CUdevice device, bool last)
{
    if (device < 0 || device >= MAX_ORDINALS)
        return false;
    pthread_mutex_lock(&lock);
    struct primary *primary = &primaries[device];
    primary->retained -= primary->retained > 0;
    bool over = primary->retained == 0 && primary->context;
    pthread_mutex_unlock(&lock);
    /* Otherwise another thread retained it meanwhile: before it ended, or anew. */
    return over ? end_unless_held(device) : last;
}

void primary_was_reset(CUdevice device)
{
    if (device < 0 || device >= MAX_ORDINALS)
        return;
    pthread_mutex_lock(&lock);
    struct primary *primary = &primaries[device];
    primary->reset = primary->retained > 0;
    primary->id = 0; /* it has another as soon as it is used */
    if (!primary->reset)
        primary->context = NULL;
    pthread_mutex_unlock(&lock);
}

/* --- modules -------------------------------------------------------------------------------------------- */

void module_loaded(const void *handle, const void *context, CUdevice device, struct cost cost)
{
    struct module *module = cost.bytes ? calloc(1, sizeof *module) : NULL;
    if (!module)
        return;
    pthread_once(&fork_once, watch_forks);
    module->place = place_of_device(device);
    module->cost = cost;
    module->context = context;
    pthread_mutex_lock(&lock);
    table_add(&modules, &module->entry, key_of(handle));
    pthread_mutex_unlock(&lock);
}

struct module *module_unloading(const void *handle)
{
    pthread_mutex_lock(&lock);
    struct module *module = (struct module *)table_find(&modules, key_of(handle));
    if (module)
        table_remove(&modules, &module->entry);
    pthread_mutex_unlock(&lock);
    looks_calls(true);
    return module;
}

CUresult module_unloaded(struct module *module, CUresult result)
{
    if (module && result == CUDA_SUCCESS) {
        guesses_ended(module->place, CHARGE_MODULE, module->cost);
        free(module);
    } else if (module) {
        pthread_mutex_lock(&lock);
        table_add(&modules, &module->entry, module->entry.key);
        pthread_mutex_unlock(&lock);
    }
    looks_calls(false);
    return result;
}
