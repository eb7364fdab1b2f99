/* A hash table of entries that their owners embed and lock: key -> entry, constant time. Not thread safe.
 *
 * For what one driver handle means to us. The table owns nothing: an entry lies in exactly one table or none.
 */
#ifndef VGPU_TABLE_H
#define VGPU_TABLE_H

#include <stddef.h>
#include <stdint.h>

enum { TABLE_BUCKETS = 1024 };

struct entry {
    struct entry *next;
    uint64_t key;
};

struct table {
    struct entry *buckets[TABLE_BUCKETS];
};

void table_add(struct table *table, struct entry *entry, uint64_t key);

/* NULL when there is none with that key; the newest if there are several. */
struct entry *table_find(const struct table *table, uint64_t key);

/* Take this entry out. It must be in. */
void table_remove(struct table *table, struct entry *entry);

/* The entries one after the other, in no order: from NULL to NULL. */
struct entry *table_next(const struct table *table, const struct entry *entry);

#endif
