"""Protobuf messages and typed call tables of the kubelet APIs."""

import os

# gRPC's core writes lines of its own to stderr, in its own shape, e.g. at every kubelet restart.
# What matters of it reaches us as errors of calls. It reads this once, when it is imported.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
