"""vgpu-agent: one program that turns a GPU node into a shared-GPU node."""

import os

# gRPC's core reads these once, when it is imported, which nothing of ours can do before this.
# It writes lines of its own to stderr, in its own shape, e.g. at every kubelet restart.
# What matters of it reaches us as errors of calls.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
# Its handlers of fork start threads in the child, which crash or stop it before it can exec.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
