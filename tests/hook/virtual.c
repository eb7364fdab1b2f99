/* Puts a program that preloads this under the simulated driver's virtual clock, from virtual_begin() on:
 * alone.
 *
 * Python reads the clock with its lock held, for which other threads wait in a way that the virtual clock knows
 * nothing of: what it reads takes no time, so that it has no turn to wait for.
 */
#include <link.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

static uintptr_t python_from, python_to;

static bool of_python(const void *caller)
{
    return (uintptr_t)caller >= python_from && (uintptr_t)caller < python_to;
}

#define READS_WITH_A_LOCK of_python
#include "virtual_time.c"

int virtual_begin(void);

static int find_python(struct dl_phdr_info *info, size_t size, void *function)
{
    uintptr_t to = 0;
    (void)size;
    for (unsigned i = 0; i < info->dlpi_phnum; i++) {
        uintptr_t end = info->dlpi_addr + info->dlpi_phdr[i].p_vaddr + info->dlpi_phdr[i].p_memsz;
        to = info->dlpi_phdr[i].p_type == PT_LOAD && end > to ? end : to;
    }
    Dl_info at;
    if (!dladdr(function, &at) || (uintptr_t)at.dli_fbase < info->dlpi_addr || (uintptr_t)at.dli_fbase >= to)
        return 0;
    python_from = (uintptr_t)at.dli_fbase;
    python_to = to;
    return 1;
}

int virtual_begin(void)
{
    dl_iterate_phdr(find_python, dlsym(RTLD_DEFAULT, "Py_Initialize"));
    return virtual_time_join(dlopen("libcuda.so.1", RTLD_NOW), 1, 0);
}
