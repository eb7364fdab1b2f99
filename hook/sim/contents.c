#include "contents.h"
#include "memory.h"

#include <pthread.h>
#include <string.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct sim_content *first;

static void forget_after_fork(void)
{
    pthread_mutex_init(&lock, NULL);
    first = NULL;
}

static __attribute__((constructor)) void watch_forks(void)
{
    pthread_atfork(NULL, NULL, forget_after_fork);
}

bool sim_content_take(const struct cuda_call *call, struct sim_content *content, uint64_t bytes)
{
    if (sim_memory_take(call->gpu->uuid, bytes, capacity_bytes(call)) != SIM_MEMORY_DONE)
        return false;
    content->context = whole_context(current_context());
    content->bytes = bytes;
    memcpy(content->uuid, call->gpu->uuid, TEXT_BYTES);
    pthread_mutex_lock(&lock);
    content->next = first;
    first = content;
    pthread_mutex_unlock(&lock);
    return true;
}

void sim_content_give(struct sim_content *content)
{
    pthread_mutex_lock(&lock);
    struct sim_content **link = &first;
    while (*link && *link != content)
        link = &(*link)->next;
    bool live = *link;
    if (live)
        *link = content->next;
    pthread_mutex_unlock(&lock);
    if (live)
        sim_memory_give(content->uuid, content->bytes, false);
}

void sim_contents_end_context(CUcontext context)
{
    pthread_mutex_lock(&lock);
    for (struct sim_content **link = &first; *link;) {
        struct sim_content *content = *link;
        if (content->context != context) {
            link = &content->next;
            continue;
        }
        *link = content->next;
        sim_memory_give(content->uuid, content->bytes, false);
    }
    pthread_mutex_unlock(&lock);
}
