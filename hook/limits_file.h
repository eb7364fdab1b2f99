/* The agent's limits file as a file: where it is, and whether it is one. What it says is limits.c's. */
#ifndef VGPU_LIMITS_FILE_H
#define VGPU_LIMITS_FILE_H

#include "limits_layout.h"

/* Map it; everything but its lines is in order. NULL: there is none, or, with a `problem`, it is unusable. */
const struct limits_file *limits_file_map(char *problem, size_t problem_bytes);

/* Say what is wrong with the file that was mapped, and what to do. */
void limits_file_complain(char *problem, size_t problem_bytes, const char *complaint);

#endif
