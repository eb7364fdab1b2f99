"""`vgpu-agent doctor`: what of a node is in order, what is not, and the command that mends it."""
