"""Nodes with the agent as a process, as in tests/e2e."""

from tests.e2e.conftest import make_node

__all__ = ["make_node"]
