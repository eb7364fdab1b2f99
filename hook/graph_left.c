#include "graph_left.h"
#include "table.h"

#include <stdlib.h>
#include <string.h>

/* An address that a launch has left, or that is being freed. */
struct left {
    struct entry entry;
    unsigned
        frees; /* under way: until they are over nobody knows which of them freed it, or what came before */
    bool there; /* left, and not freed since, */
    bool fresh; /* unless none of the launches that leave it was made yet */
    bool before; /* it was there when they began, and none has freed it */
};

static struct table lefts; /* by address */

void left_forget(void)
{
    memset(&lefts, 0, sizeof lefts);
}

static struct left *left_at(CUdeviceptr address)
{
    return (struct left *)table_find(&lefts, address);
}

/* The same, made if need be. NULL when there is no memory. */
static struct left *left_made(CUdeviceptr address)
{
    struct left *left = left_at(address);
    if (!left && (left = calloc(1, sizeof *left)))
        table_add(&lefts, &left->entry, address);
    return left;
}

bool left_there(CUdeviceptr address)
{
    const struct left *left = left_at(address);
    return left && left->there && !left->frees;
}

void left_add(CUdeviceptr address)
{
    struct left *left = left_made(address);
    if (!left)
        return;
    left->fresh |= !left->there;
    left->there = true;
}

void left_drop(CUdeviceptr address)
{
    struct left *left = left_at(address);
    if (!left)
        return;
    left->there = left->fresh = left->before = false;
    if (left->frees)
        return;
    table_remove(&lefts, &left->entry);
    free(left);
}

void left_launched(CUdeviceptr address, enum graph_stage stage)
{
    struct left *left = left_at(address);
    if (left && stage == GRAPH_LAUNCHED)
        left->fresh = false;
    else if (left && (stage == GRAPH_REFUSED || left->fresh))
        left_drop(address);
}

void left_free_begins(CUdeviceptr address)
{
    struct left *left = left_made(address);
    if (!left)
        return;
    left->before |= left->there;
    left->there = false;
    left->frees++;
}

void left_free_ends(CUdeviceptr address, bool freed)
{
    struct left *left = left_at(address);
    if (!left)
        return;
    left->frees -= left->frees > 0;
    left->there |= left->before;
    if (freed || !left->there)
        left_drop(address);
}
