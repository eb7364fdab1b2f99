/* The statements of the configuration that say how work runs on the GPUs. Pure. */
#ifndef VGPU_SIM_NODE_EXECUTION_H
#define VGPU_SIM_NODE_EXECUTION_H

#include "node.h"
#include "node_words.h"

/* kernel_us, slice_us, launch_us and queue_depth, by the line's first word. */
bool parse_execution(const struct line *line, struct sim_node *node);
bool parse_kernel(const struct line *line, struct sim_node *node);
bool parse_clock(const struct line *line, struct sim_node *node);
bool parse_green_contexts(const struct line *line, struct sim_node *node);
bool parse_absent(const struct line *line, struct sim_node *node);

#endif
