#include "depth.h"

static _Thread_local unsigned depth __attribute__((tls_model("initial-exec")));

bool depth_inside(void)
{
    return depth > 0;
}

void depth_enter(void)
{
    depth++;
}

void depth_leave(void)
{
    depth--;
}
