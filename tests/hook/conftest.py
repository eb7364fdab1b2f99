"""Programs under the hook, on a simulated driver."""

from pathlib import Path

import pytest
from built_hook import sim_libraries
from hooked_programs import Node

from agent.sim.driver import SimDriver


@pytest.fixture
def node(tmp_path: Path) -> Node:
    """One A40 (46068 MiB)."""
    sim = SimDriver(tmp_path, libraries=sim_libraries())
    sim.add_gpu()
    return Node(sim, tmp_path / "container.cache")
