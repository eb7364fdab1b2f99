#include "table.h"

static size_t bucket_of(uint64_t key)
{
    /* The top bits of a product depend on all bits of the key, of which the lowest are mostly zero. */
    return (size_t)(key * UINT64_C(0x9E3779B97F4A7C15) >> 54);
}
_Static_assert(TABLE_BUCKETS == 1 << (64 - 54), "bucket_of");

void table_add(struct table *table, struct entry *entry, uint64_t key)
{
    struct entry **bucket = &table->buckets[bucket_of(key)];
    entry->key = key;
    entry->next = *bucket;
    *bucket = entry;
}

struct entry *table_find(const struct table *table, uint64_t key)
{
    struct entry *entry = table->buckets[bucket_of(key)];
    while (entry && entry->key != key)
        entry = entry->next;
    return entry;
}

void table_remove(struct table *table, struct entry *entry)
{
    struct entry **link = &table->buckets[bucket_of(entry->key)];
    while (*link && *link != entry)
        link = &(*link)->next;
    if (*link)
        *link = entry->next;
}

struct entry *table_next(const struct table *table, const struct entry *entry)
{
    if (entry && entry->next)
        return entry->next;
    for (size_t i = entry ? bucket_of(entry->key) + 1 : 0; i < TABLE_BUCKETS; i++)
        if (table->buckets[i])
            return table->buckets[i];
    return NULL;
}
