"""The demo: the main job on a simulated node, watched from the outside."""
