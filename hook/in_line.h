/* Before every source of the library, by the compiler's -include: code in a section that is named stays where
 * it is. For aarch64 clang would else move what several functions have alike into some 300 of its own: that
 * is slower, and the unwind tables of these take more room than they spare. */
#ifndef VGPU_IN_LINE_H
#define VGPU_IN_LINE_H

#ifdef __clang__
#pragma clang section text = ".text.vgpu"
#endif

#endif
