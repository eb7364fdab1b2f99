#include "spare.h"

#include <string.h>
#include <sys/mman.h>

void *spare_pages(void *spare, size_t bytes, atomic_bool *taken)
{
    void *pages = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages != MAP_FAILED)
        return pages;
    return atomic_exchange(taken, true) ? NULL : spare;
}

void spare_back(void *pages, void *spare, size_t bytes, atomic_bool *taken)
{
    if (pages != spare) {
        munmap(pages, bytes);
        return;
    }
    memset(pages, 0, bytes);
    atomic_store(taken, false);
}
