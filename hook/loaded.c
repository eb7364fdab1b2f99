#include "loaded.h"
#include "same_text.h"

#include <elf.h>
#include <link.h>
#include <stddef.h>
#include <string.h>

/* The loader's own list, which glibc shows to debuggers. Weak: musl has another. */
extern struct r_debug _r_debug __attribute__((weak));

struct tables {
    const ElfW(Sym) * symbols;
    const char *strings, *soname;
    const uint32_t *gnu_hash, *sysv_hash;
};

static uintptr_t apart(uintptr_t one, uintptr_t other)
{
    return one > other ? one - other : other - one;
}

/* glibc has turned these addresses into pointers, but where it may not write, as in the vDSO; musl leaves
 * them as they are in the file. A library may have been linked at any address, so that its base is any
 * number: the pointer is what lies near the entry. */
const void *loaded_pointer(uintptr_t base, const ElfW(Dyn) * entry)
{
    uintptr_t is = entry->d_un.d_ptr, at = (uintptr_t)entry;
    return (const void *)(apart(is, at) < apart(base + is, at) ? is : base + is);
}

static struct tables tables_of(uintptr_t base, const ElfW(Dyn) * dynamic)
{
    struct tables tables = {0};
    const ElfW(Dyn) *soname = NULL;
    for (; dynamic && dynamic->d_tag != DT_NULL; dynamic++) {
        if (dynamic->d_tag == DT_SYMTAB)
            tables.symbols = loaded_pointer(base, dynamic);
        else if (dynamic->d_tag == DT_STRTAB)
            tables.strings = loaded_pointer(base, dynamic);
        else if (dynamic->d_tag == DT_GNU_HASH)
            tables.gnu_hash = loaded_pointer(base, dynamic);
        else if (dynamic->d_tag == DT_HASH)
            tables.sysv_hash = loaded_pointer(base, dynamic);
        else if (dynamic->d_tag == DT_SONAME)
            soname = dynamic;
    }
    if (tables.strings && soname)
        tables.soname = tables.strings + soname->d_un.d_val;
    return tables;
}

static bool defines(const struct tables *tables, uint32_t i, const char *name)
{
    const ElfW(Sym) *symbol = &tables->symbols[i];
    return symbol->st_shndx != SHN_UNDEF && symbol->st_value != 0
        && (1 << ELF64_ST_TYPE(symbol->st_info) & (1 << STT_FUNC | 1 << STT_GNU_IFUNC | 1 << STT_OBJECT))
        && same_text(tables->strings + symbol->st_name, name);
}

static const ElfW(Sym) * by_gnu_hash(const struct tables *tables, const char *name)
{
    uint32_t buckets = tables->gnu_hash[0], first = tables->gnu_hash[1], filters = tables->gnu_hash[2];
    const uint32_t *bucket = (const uint32_t *)((const ElfW(Addr) *)(tables->gnu_hash + 4) + filters);
    const uint32_t *chain = bucket + buckets;
    uint32_t hash = 5381;
    for (const char *c = name; *c; c++)
        hash = hash * 33 + (unsigned char)*c;
    uint32_t i = buckets ? bucket[hash % buckets] : 0;
    for (; i >= first && i != 0; i++) {
        if ((chain[i - first] | 1) == (hash | 1) && defines(tables, i, name))
            return &tables->symbols[i];
        if (chain[i - first] & 1)
            break;
    }
    return NULL;
}

static const ElfW(Sym) * by_sysv_hash(const struct tables *tables, const char *name)
{
    uint32_t buckets = tables->sysv_hash[0];
    const uint32_t *bucket = tables->sysv_hash + 2, *chain = bucket + buckets;
    uint32_t hash = 0;
    for (const char *c = name; *c; c++) {
        hash = (hash << 4) + (unsigned char)*c;
        hash = (hash ^ ((hash & 0xf0000000) >> 24)) & 0x0fffffff;
    }
    for (uint32_t i = buckets ? bucket[hash % buckets] : 0; i != 0; i = chain[i])
        if (defines(tables, i, name))
            return &tables->symbols[i];
    return NULL;
}

static void *definition(uintptr_t base, const struct tables *tables, const char *name)
{
    const ElfW(Sym) *symbol = NULL;
    if (!tables->symbols || !tables->strings)
        return NULL;
    if (tables->gnu_hash)
        symbol = by_gnu_hash(tables, name);
    else if (tables->sysv_hash)
        symbol = by_sysv_hash(tables, name);
    return symbol ? (void *)(base + symbol->st_value) : NULL;
}

/* --- one library after the other ------------------------------------------------------------------------ */

struct search {
    const void *address; /* looked for */
    const char *name;
    struct loaded *library;
    bool passed;
    void *found;
};

/* In a part of it, not between two: a library may be linked with room between them, and where the kernel has
 * mapped it, as it does the loader, others may lie there. */
bool loaded_contains(const struct dl_phdr_info *info, const void *address, uintptr_t *low, uintptr_t *high)
{
    bool inside = false;
    *low = UINTPTR_MAX;
    *high = 0;
    for (unsigned i = 0; i < info->dlpi_phnum; i++) {
        if (info->dlpi_phdr[i].p_type != PT_LOAD)
            continue;
        uintptr_t from = info->dlpi_addr + info->dlpi_phdr[i].p_vaddr;
        uintptr_t to = from + info->dlpi_phdr[i].p_memsz;
        inside |= (uintptr_t)address >= from && (uintptr_t)address < to;
        *low = from < *low ? from : *low;
        *high = to > *high ? to : *high;
    }
    return inside;
}

const ElfW(Dyn) * loaded_dynamic(const struct dl_phdr_info *info)
{
    for (unsigned i = 0; i < info->dlpi_phnum; i++)
        if (info->dlpi_phdr[i].p_type == PT_DYNAMIC)
            return (const ElfW(Dyn) *)(info->dlpi_addr + info->dlpi_phdr[i].p_vaddr);
    return NULL;
}

static struct tables tables_in(const struct dl_phdr_info *info)
{
    return tables_of(info->dlpi_addr, loaded_dynamic(info));
}

/* Where the loader has relocated us; among what it relocates anyway (late.c). */
__attribute__((section(".data.rel.ro"), used, retain)) static const void *const self = (const void *)&self;

/* Not yet where a function of a library behind us, which says which of its own are called, asks us. */
static bool bound(void)
{
    return *(const void *const volatile *)&self == (const void *)&self;
}

/* By libc's own walk: a program may have put a list of its own in its place, without what came later. */
int loaded_walk(int (*look)(struct dl_phdr_info *, size_t, void *), void *context)
{
    __typeof__(&dl_iterate_phdr) libcs;
    *(void **)&libcs = loaded_libc("dl_iterate_phdr");
    if (!libcs && !bound())
        return 0;
    return (libcs ? libcs : dl_iterate_phdr)(look, context);
}

/* A program that reads it has a copy, which the linker gave it, and which is what we see, too. glibc
 * 2.31 goes on with that; 2.35 with the one that it told the program, the first of the list, by DT_DEBUG, and
 * the copy stays as it was. */
static const struct r_debug *told_program(void)
{
    const struct link_map *program = &_r_debug ? _r_debug.r_map : NULL;
    for (const ElfW(Dyn) *entry = program ? program->l_ld : NULL; entry && entry->d_tag != DT_NULL; entry++)
        if (entry->d_tag == DT_DEBUG && entry->d_un.d_ptr)
            return (const struct r_debug *)entry->d_un.d_ptr;
    return &_r_debug;
}

bool loaded_all(void)
{
    /* By glibc: what the program was told is, else that says for good that something is being added. */
    static bool is_kept;
    const struct r_debug *told = told_program();
    if (told && told->r_state != RT_CONSISTENT)
        return !is_kept && _r_debug.r_state == RT_CONSISTENT;
    is_kept = true;
    return true;
}

const struct link_map *loaded_last(void)
{
    const struct link_map *map = &_r_debug ? _r_debug.r_map : NULL;
    while (map && map->l_next)
        map = map->l_next;
    return map;
}

static bool is_code(const struct dl_phdr_info *info, const void *address)
{
    uintptr_t at = (uintptr_t)address - info->dlpi_addr;
    bool inside = false;
    for (const ElfW(Phdr) *part = info->dlpi_phdr; part < info->dlpi_phdr + info->dlpi_phnum; part++)
        inside |= part->p_type == PT_LOAD && part->p_flags & PF_X && at - part->p_vaddr < part->p_memsz;
    return inside;
}

static int look_for_address(struct dl_phdr_info *info, size_t size, void *context)
{
    struct search *search = context;
    struct loaded *library = search->library;
    (void)size;
    if (!loaded_contains(info, search->address, &library->low, &library->high))
        return 0;
    library->path = info->dlpi_name;
    library->soname = tables_in(info).soname;
    library->is_code = is_code(info, search->address);
    return 1;
}

bool loaded_at(const void *address, struct loaded *library)
{
    struct search search = {.address = address, .library = library};
    return loaded_walk(look_for_address, &search) == 1;
}

bool loaded_keeps(const struct dl_phdr_info *info, const char *name)
{
    struct tables tables = tables_in(info);
    const void *found = definition(info->dlpi_addr, &tables, name);
    return found && !is_code(info, found);
}

static int look_behind(struct dl_phdr_info *info, size_t size, void *context)
{
    struct search *search = context;
    uintptr_t low, high;
    (void)size;
    if (search->passed) {
        struct tables tables = tables_in(info);
        search->found = definition(info->dlpi_addr, &tables, search->name);
        return search->found != NULL;
    }
    search->passed = !search->address || loaded_contains(info, search->address, &low, &high);
    return 0;
}

void *loaded_next_definition(const void *caller, const char *name)
{
    struct search search = {.address = caller, .name = name};
    loaded_walk(look_behind, &search);
    if (!search.passed) { /* code that no library holds counts as the program's */
        search.address = NULL;
        loaded_walk(look_behind, &search);
    }
    return search.found;
}

/* --- what a library is linked to -------------------------------------------------------------------------
 */

static void *definition_in(const struct link_map *map, const char *name)
{
    struct tables tables = tables_of(map->l_addr, map->l_ld);
    return definition(map->l_addr, &tables, name);
}

/* By the name that it was built with, or, where it has none, by where it was found. */
static const struct link_map *named(const char *needed)
{
    const struct link_map *map = _r_debug.r_map;
    for (; map; map = map->l_next) {
        const char *soname = tables_of(map->l_addr, map->l_ld).soname;
        if (same_text(soname ? soname : map->l_name, needed))
            break;
    }
    return map;
}

void *loaded_seen_from(const struct dl_phdr_info *library, const char *name)
{
    enum { MOST = 128 };
    const struct link_map *linked[MOST], *map = &_r_debug ? _r_debug.r_map : NULL;
    while (map && map->l_ld != loaded_dynamic(library))
        map = map->l_next;
    void *found = map ? definition_in(map, name) : NULL;
    for (size_t i = 0, count = 0; map && !found; map = i < count ? linked[i++] : NULL) { /* in libc's order */
        const char *strings = tables_of(map->l_addr, map->l_ld).strings;
        for (const ElfW(Dyn) *entry = map->l_ld; entry->d_tag != DT_NULL && count < MOST && !found; entry++)
            if (entry->d_tag == DT_NEEDED && (linked[count] = named(strings + entry->d_un.d_val)))
                found = definition_in(linked[count++], name);
    }
    return found;
}

/* --- libc ----------------------------------------------------------------------------------------------- */

static bool of_libc(const struct tables *tables)
{
    return tables->soname
        && (same_text(tables->soname, "libc.so.6") || same_text(tables->soname, "libdl.so.2")
            || same_text(tables->soname, "libpthread.so.0"));
}

static int look_in_any_other(struct dl_phdr_info *info, size_t size, void *context)
{
    struct search *search = context;
    uintptr_t low, high;
    (void)size;
    if (loaded_contains(info, (const void *)&loaded_libc, &low, &high))
        return 0;
    struct tables tables = tables_in(info);
    if (!&_r_debug || of_libc(&tables))
        search->found = definition(info->dlpi_addr, &tables, search->name);
    return search->found != NULL;
}

void *loaded_libc(const char *name)
{
    bool any = false;
    /* Not by dl_iterate_phdr: a program may have put its own in libc's place, whose first act is to look
     * libc's up, with dlsym. Nor under the loader's lock: libc and what was there at the start stay. */
    for (struct link_map *map = &_r_debug ? _r_debug.r_map : NULL; map; map = map->l_next) {
        struct tables tables = tables_of(map->l_addr, map->l_ld);
        bool is_libc = of_libc(&tables);
        void *found = is_libc ? definition(map->l_addr, &tables, name) : NULL;
        if (found)
            return found;
        any |= is_libc;
    }
    /* A program that is a loader itself may have a list of its own there, without libc. */
    if (any || !bound())
        return NULL;
    struct search search = {.name = name};
    dl_iterate_phdr(look_in_any_other, &search);
    return search.found;
}
