/* Which addresses launches of graphs have left to the program, and whether those are there still. Not thread
 * safe: called with the lock of graphs.c held.
 */
#ifndef VGPU_GRAPH_LEFT_H
#define VGPU_GRAPH_LEFT_H

#include "graphs.h"

/* A launch that leaves it is to be made, and was answered. */
void left_add(CUdeviceptr address);
void left_launched(CUdeviceptr address, enum graph_stage stage);

/* Left, and neither freed since nor being freed. */
bool left_there(CUdeviceptr address);

/* Around what may free it. */
void left_free_begins(CUdeviceptr address);
void left_free_ends(CUdeviceptr address, bool freed);

/* It is not there any more. */
void left_drop(CUdeviceptr address);

/* In a child of fork. */
void left_forget(void);

#endif
