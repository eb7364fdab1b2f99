/* What to do about an error that says nothing of the file in question, only of this process or its node. */
#ifndef VGPU_SHORTAGE_H
#define VGPU_SHORTAGE_H

#include <errno.h>

/* NULL for every other error. */
static inline const char *shortage_advice(int error)
{
    return error == EMFILE ? "close some, or raise their limit (ulimit -n)"
        : error == ENFILE || error == ENOMEM || error == ENOSPC ? "free some on the node"
                                                                : (const char *)0;
}

#endif
