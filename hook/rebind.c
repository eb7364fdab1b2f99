#include "rebind.h"
#include "loaded.h"
#include "names.h"

#include <elf.h>
#include <stdatomic.h>
#include <stddef.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

struct list { /* of the loader */
    rebind_choice *choose;
    size_t count, passed; /* libraries in it, */
    unsigned long long added, before; /* that were added ever, and until the last time */
};

/* What a library asks for. */
struct asked {
    const ElfW(Sym) * symbols;
    const char *names;
    const ElfW(Rela) * entries[2];
    size_t bytes[2];
};

static unsigned long long seen; /* libraries that were added until now; 0: not begun. By who has its lock */

static struct asked asked_of(const struct dl_phdr_info *info)
{
    struct asked asked = {0};
    for (const ElfW(Dyn) *entry = loaded_dynamic(info); entry && entry->d_tag != DT_NULL; entry++) {
        if (entry->d_tag == DT_SYMTAB)
            asked.symbols = loaded_pointer(info->dlpi_addr, entry);
        else if (entry->d_tag == DT_STRTAB)
            asked.names = loaded_pointer(info->dlpi_addr, entry);
        else if (entry->d_tag == DT_RELA)
            asked.entries[0] = loaded_pointer(info->dlpi_addr, entry);
        else if (entry->d_tag == DT_RELASZ)
            asked.bytes[0] = entry->d_un.d_val;
        else if (entry->d_tag == DT_JMPREL)
            asked.entries[1] = loaded_pointer(info->dlpi_addr, entry);
        else if (entry->d_tag == DT_PLTRELSZ)
            asked.bytes[1] = entry->d_un.d_val;
    }
    return asked;
}

/* For the pages that were written when it was loaded, and must not be since. False: the place is not to be
 * written to. It is in code, or a rule of the container's forbids it. */
static bool protect(const struct dl_phdr_info *info, uintptr_t place, int protection)
{
    uintptr_t within = ~(getauxval(AT_PAGESZ) - 1);
    bool written = false;
    for (unsigned i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &info->dlpi_phdr[i];
        uintptr_t from = info->dlpi_addr + part->p_vaddr, to = from + part->p_memsz;
        if (part->p_type == PT_GNU_RELRO) {
            from &= within;
            to &= within;
        }
        if (place - from >= to - from)
            continue;
        if (part->p_type == PT_LOAD)
            written = part->p_flags & PF_W;
        else if (part->p_type == PT_GNU_RELRO && syscall(SYS_mprotect, from, to - from, protection) != 0)
            return false;
    }
    return written;
}

static bool is_ours(const char *name, const void *found)
{
    enum row row = names_form(name) ? names_row(name) : NO_ROW;
    return row != NO_ROW && names_wrapper(row) == found;
}

/* Its own, or that of a library that it is linked to. */
static void *variable_of(const struct dl_phdr_info *info, const ElfW(Sym) * symbol, const char *name)
{
    if (symbol->st_shndx != SHN_UNDEF)
        return ELF64_ST_TYPE(symbol->st_info) == STT_OBJECT ? (void *)(info->dlpi_addr + symbol->st_value)
                                                            : NULL;
    struct loaded keeping;
    void *found = loaded_seen_from(info, name);
    return found && loaded_at(found, &keeping) && !keeping.is_code ? found : NULL;
}

/* Without a choice: a variable, where it was given our function of that name. */
static void rebind(const struct dl_phdr_info *info, const struct asked *asked, const ElfW(Rela) * entry,
                   rebind_choice *choose)
{
    const ElfW(Sym) *symbol = &asked->symbols[ELF64_R_SYM(entry->r_info)];
    if (!ELF64_R_SYM(entry->r_info) || entry->r_addend || (choose && symbol->st_shndx != SHN_UNDEF))
        return;
    const char *name = asked->names + symbol->st_name;
    uintptr_t at = info->dlpi_addr + entry->r_offset, low, high;
    void *_Atomic *place = (void *_Atomic *)at;
    /* Relaxed: what is more than a plain access ends a program on aarch64 where the place is not aligned. */
    void *found = atomic_load_explicit(place, memory_order_relaxed);
    bool looked_up = !loaded_contains(info, found, &low, &high); /* or it is what looks it up */
    void *chosen = choose               ? choose(info, name, looked_up ? found : NULL)
        : found && is_ours(name, found) ? variable_of(info, symbol, name)
                                        : NULL;
    if (!chosen || !protect(info, at, PROT_READ | PROT_WRITE))
        return;
    atomic_store_explicit(place, chosen, memory_order_relaxed);
    protect(info, at, PROT_READ);
}

static void rebind_all_of(const struct dl_phdr_info *info, rebind_choice *choose)
{
    struct asked asked = asked_of(info);
    for (int i = 0; asked.symbols && asked.names && i < 2; i++)
        for (const ElfW(Rela) *entry = asked.entries[i];
             entry && (size_t)(entry - asked.entries[i]) < asked.bytes[i] / sizeof *entry; entry++)
            rebind(info, &asked, entry, choose);
}

static int count(struct dl_phdr_info *info, size_t size, void *context)
{
    struct list *list = context;
    (void)size;
    list->count++;
    list->added = info->dlpi_adds;
    return 0;
}

static int rebind_in(struct dl_phdr_info *info, size_t size, void *context)
{
    struct list *list = context;
    uintptr_t low, high;
    (void)size;
    if (!list->passed) {
        if (info->dlpi_adds == seen)
            return 1;
        loaded_walk(count, list);
        list->before = seen;
        seen = list->added;
    }
    /* New ones are at its end; as many that were there are looked at again as have left it since. */
    bool is_new = list->passed++ + (list->added - list->before) >= list->count;
    if (!is_new || loaded_contains(info, &seen, &low, &high))
        return 0;
    rebind_all_of(info, list->choose);
    return 0;
}

static int begin(struct dl_phdr_info *info, size_t size, void *context)
{
    (void)size;
    (void)context;
    seen = seen ? seen : info->dlpi_adds;
    return 1;
}

void rebind_begin(void)
{
    loaded_walk(begin, NULL);
}

void rebind_new(rebind_choice *choose)
{
    struct list list = {.choose = choose};
    loaded_walk(rebind_in, &list);
}

/* Whoever uses a driver has what is called first. */
static int has_variables(struct dl_phdr_info *info, size_t size, void *context)
{
    (void)size;
    (void)context;
    return loaded_keeps(info, "cuInit") || loaded_keeps(info, "nvmlInit_v2");
}

static int keep_variables_in(struct dl_phdr_info *info, size_t size, void *context)
{
    (void)size;
    (void)context;
    rebind_all_of(info, NULL);
    return 0;
}

/* Few programs have a library with such variables, and only there is gone through what all ask for. */
void rebind_variables(void)
{
    if (loaded_walk(has_variables, NULL))
        loaded_walk(keep_variables_in, NULL);
}
