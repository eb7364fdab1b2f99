/* Amounts as people write them into the environment. Pure; settings.h says which forms there are. */
#ifndef VGPU_AMOUNTS_H
#define VGPU_AMOUNTS_H

#include <stdbool.h>
#include <stdint.h>

/* An amount of memory. False when malformed; then *bytes stays. */
bool parse_bytes(const char *text, uint64_t *bytes);

/* A share in percent; 0 stays 0, 100 and more are WHOLE_GPU_PERMILLE. False when malformed; then *permille
 * stays. */
bool parse_percent(const char *text, uint32_t *permille);

#endif
