/* Reads and writes of a number that stands by itself, or that others see only after what publishes it: when
 * it is seen says nothing of other memory. That spares the instructions that would order it. */
#ifndef VGPU_LOOSE_H
#define VGPU_LOOSE_H

#include <stdatomic.h>

#define loose_load(object) atomic_load_explicit(object, memory_order_relaxed)
#define loose_store(object, value) atomic_store_explicit(object, value, memory_order_relaxed)

#endif
