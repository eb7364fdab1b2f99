/* Memory for what is found at lookups, once for each: by mmap, as malloc may be the program's own and look
 * symbols up itself; or where there is none, in the library. Without it a lookup would give the driver's own
 * function, and who has that has no limit.
 */
#ifndef VGPU_SPARE_H
#define VGPU_SPARE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

/* All zero: `spare`, of as many bytes, where that is all there is; NULL when it is `taken` too. */
void *spare_pages(void *spare, size_t bytes, atomic_bool *taken);

/* What was got there is not used after all. */
void spare_back(void *pages, void *spare, size_t bytes, atomic_bool *taken);

#endif
