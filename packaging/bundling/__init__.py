"""Makes what is released from the tree: the frozen agent, one executable, a tarball, an image."""
