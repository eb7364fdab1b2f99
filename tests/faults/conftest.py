"""Nodes as in tests/e2e."""

from pathlib import Path

import pytest

from tests.e2e.conftest import NodeMaker, make_node
from tests.faults.breaking import breaking_node
from tests.faults.story import QUICK, Story

__all__ = ["make_node"]


@pytest.fixture
def story(make_node: NodeMaker, tmp_path: Path) -> Story:
    node, breaking = breaking_node(make_node, tmp_path, *QUICK)
    return Story(node, breaking)
