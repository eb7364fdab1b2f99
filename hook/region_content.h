/* What is in the file of a usage region: whether it is one, and making it one.
 */
#ifndef VGPU_REGION_CONTENT_H
#define VGPU_REGION_CONTENT_H

#include "region_layout.h"

#include <stdbool.h>

#define REGION_OTHER_LAYOUT "it is a usage region of another layout"

/* Why it is none of ours to take over, by how its file begins, all zero where that is empty; or NULL. */
struct region_beginning {
    int32_t magic;
    uint32_t major;
};
const char *region_complaint(struct region_beginning beginning);

/* Whether it has all that we need. */
bool region_in_order(struct region *region);

/* Add what is missing, or of another version of ours. Called with the file's lock held, of what there is no
 * complaint about. */
void region_put_in_order(struct region *region);

/* Our part of a mapped region. */
static inline struct region_tail *region_tail(struct region *region)
{
    return (struct region_tail *)(void *)((char *)region + TAIL_OFFSET);
}

/* A uuid is complete from the moment that its first byte is there. */
static inline bool region_has_device(struct region *region, int place)
{
    return __atomic_load_n(&region->uuids[place][0], __ATOMIC_ACQUIRE) != 0;
}

#endif
