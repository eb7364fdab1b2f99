#include "depth.h"

_Thread_local unsigned depth_of_thread;
