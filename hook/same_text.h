/* Whether two texts are the same, without libc: on the way of every dlsym of the process we may call no
 * function that a sanitizer replaces, because it finds the real ones with dlsym first.
 */
#ifndef VGPU_SAME_TEXT_H
#define VGPU_SAME_TEXT_H

#include <stdbool.h>

static inline bool same_text(const char *one, const char *other)
{
    for (; *one && *one == *other; one++)
        other++;
    return *one == *other;
}

#endif
