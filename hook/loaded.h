/* The libraries of this process, read from the tables that the loader keeps of them: what lies where, and
 * what each of them defines.
 *
 * It answers where libc's own lookups cannot be asked: before libc's dlsym is known, and on behalf of a
 * caller that is not us. Takes no lock of ours, allocates nothing. `loaded_at` and `loaded_next_definition`
 * hold the loader's lock while they look.
 */
#ifndef VGPU_LOADED_H
#define VGPU_LOADED_H

#include <link.h>
#include <stdbool.h>
#include <stdint.h>

/* A library, from the first to behind the last byte of its mapping. */
struct loaded {
    uintptr_t low, high;
    const char *path; /* as the loader knows it, while it is loaded; "" for the program itself */
    const char *soname; /* the name that it was built with, likewise; NULL: none */
    bool is_code; /* the address that was asked for, and so a function, no variable */
};

/* The library that `address` lies in; false when it lies in none. */
bool loaded_at(const void *address, struct loaded *library);

/* Where the search order comes to `name` first, behind the library that `caller` lies in (behind the program,
 * when it lies in none): what RTLD_NEXT means. NULL when nobody there defines it. */
void *loaded_next_definition(const void *caller, const char *name);

/* For each library, with the loader's lock held, until `look` gives something, which this gives then. */
int loaded_walk(int (*look)(struct dl_phdr_info *, size_t, void *), void *context);

/* Whether all that the loader has begun to open is there; false in the midst. By who has its lock. */
bool loaded_all(void);

/* Where new ones come behind, as the loader shows it. By who has its lock, which loading takes. */
const struct link_map *loaded_last(void);

/* Whether it lies in a part of the library; where the library begins and ends. */
bool loaded_contains(const struct dl_phdr_info *info, const void *address, uintptr_t *low, uintptr_t *high);

/* NULL: it has none, as what is linked statically. */
const ElfW(Dyn) * loaded_dynamic(const struct dl_phdr_info *info);

/* What an entry of that points to. */
const void *loaded_pointer(uintptr_t base, const ElfW(Dyn) * entry);

/* What `name` is in a library, or in what it is linked to; NULL when nobody there defines it. It is read in
 * the tables: to ask libc, the library has to be opened, which runs its constructors, perhaps in the midst of
 * those of one that it is linked to. By who has the loader's lock. */
void *loaded_seen_from(const struct dl_phdr_info *library, const char *name);

/* Whether it has a variable of this name. */
bool loaded_keeps(const struct dl_phdr_info *info, const char *name);

/* A function of libc, or of libdl or libpthread where these are libraries of their own; NULL when there is
 * none of that name. */
void *loaded_libc(const char *name);

#endif
