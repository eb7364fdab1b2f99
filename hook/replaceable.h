/* The entries of functions that others replace by a jump to their own, as UCX does to see GPU memory come and
 * go.
 *
 * Who does so copies the instructions that it overwrites to another place, where they are run before the
 * rest: UCX up to 1.18.0 knows `push`, `mov %rsp, %rbp` and few others there, and none that a function's work
 * begins with. Where it meets another one in one of these functions it is told of no memory, and has no cache
 * of registrations. A jump takes 5 bytes where its target is within 2 GiB, else 12 or 13: to save all
 * registers that a caller expects back takes 13. For x86-64: elsewhere no such code is copied.
 */
#ifndef VGPU_REPLACEABLE_H
#define VGPU_REPLACEABLE_H

/* The first statement of such a function. */
#ifdef __x86_64__
#define REPLACEABLE_ENTRY                                                                                    \
    __asm__ volatile("" : : "r"(__builtin_frame_address(0)) : "rbx", "r12", "r13", "r14", "r15")
#else
#define REPLACEABLE_ENTRY ((void)0)
#endif

#endif
