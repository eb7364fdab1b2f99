"""vgpu-agent: one program that turns a GPU node into a shared-GPU node."""
