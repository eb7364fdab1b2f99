/* How the floating-point unit of a thread is set: the program may have it trap, or look at what has been
 * inexact since. What we compute is not to end it, or to be seen there.
 *
 * For x86-64: processors of aarch64 in servers do not trap.
 */
#ifndef VGPU_FP_MODE_H
#define VGPU_FP_MODE_H

#define FP_MODE_DEFAULT 0x1f80u /* no traps, nothing was inexact, rounded to the nearest */

/* Set it to the default. Gives what it was, for fp_mode_back. */
static inline unsigned fp_mode_own(void)
{
#ifdef __x86_64__
    unsigned before = __builtin_ia32_stmxcsr();
    __builtin_ia32_ldmxcsr(FP_MODE_DEFAULT);
    return before;
#else
    return FP_MODE_DEFAULT;
#endif
}

static inline void fp_mode_back(unsigned before)
{
#ifdef __x86_64__
    __builtin_ia32_ldmxcsr(before);
#else
    (void)before;
#endif
}

#endif
