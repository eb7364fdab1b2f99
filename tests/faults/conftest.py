"""Nodes as in tests/e2e; and the report of a test says at which boundaries it met the agent."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.conftest import NodeMaker, make_node
from tests.faults.breaking import breaking_node, carried_out
from tests.faults.story import QUICK, Story

__all__ = ["make_node"]


@pytest.fixture
def story(make_node: NodeMaker, tmp_path: Path) -> Story:
    node, breaking = breaking_node(make_node, tmp_path, *QUICK)
    return Story(node, breaking)


@pytest.fixture(autouse=True)
def boundaries_met(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[None]:
    yield
    for done, names in carried_out(tmp_path).items():
        if names:  # `record_property` is refused for the form of report that is the default
            request.node.user_properties.append((f"{done} at", " ".join(names)))
