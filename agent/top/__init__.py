"""`vgpu-agent top`: who uses this node's GPUs, live, in a terminal.

Everything that decides is pure: two answers of the agent become `rates`, these with the newer
answer a `view`, that the `drawing`. `command` and `screen` have the effects.
"""
