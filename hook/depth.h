/* Whether this thread is inside a wrapper: what the driver itself calls or looks up then is its own business,
 * or a block would be charged twice. One word of thread-local storage, of the kind that needs no call and no
 * allocation.
 *
 * An exception may leave the driver through us, out of a callback that the program gave it (of
 * cuLogsRegisterCallback, for one). Whoever catches it is outside, or that thread would never be counted
 * again: each function that enters names depth_unwound as what the unwinder asks about its frame.
 */
#ifndef VGPU_DEPTH_H
#define VGPU_DEPTH_H

#include <stdbool.h>
#include <stdint.h>

extern _Thread_local int depth_of_thread __attribute__((tls_model("initial-exec"), visibility("hidden")));

static inline bool depth_inside(void)
{
    return depth_of_thread > 0;
}

/* A personality routine of the C++ ABI for functions without handlers: it lets the exception pass. */
int depth_unwound(int version, int actions, uint64_t kind, void *exception, void *frame)
    __attribute__((visibility("hidden")));

#ifdef __GCC_HAVE_DWARF2_CFI_ASM
#define DEPTH_PERSONALITY __asm__ volatile(".cfi_personality 0x1b, depth_unwound") /* 32 bits, from here */
#else
#define DEPTH_PERSONALITY /* no tables, so nothing is unwound through us */
#endif

static inline __attribute__((always_inline)) void depth_enter(void)
{
    DEPTH_PERSONALITY;
    depth_of_thread++;
}

/* Below zero if an exception was caught further in, by a driver that had called itself: counted, then. */
static inline void depth_leave(void)
{
    depth_of_thread--;
}

#endif
