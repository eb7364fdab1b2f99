#include "depth.h"

enum { CLEANUP_PHASE = 2, CONTINUE_UNWIND = 8 }; /* _UA_CLEANUP_PHASE and _URC_CONTINUE_UNWIND */

_Thread_local int depth_of_thread;

/* Named by assembler only, which is not seen where all files are optimised as one. */
__attribute__((used)) int depth_unwound(int version, int actions, uint64_t kind, void *exception, void *frame)
{
    (void)version, (void)kind, (void)exception, (void)frame;
    if (actions & CLEANUP_PHASE) /* before, somebody is only looked for who catches it */
        depth_of_thread = 0;
    return CONTINUE_UNWIND;
}
