"""The registration loop next to a stand-in kubelet, for the tests of both in this folder."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from plugin_bed import Agent

from agent.sim.kubelet import StandInKubelet


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


@pytest.fixture
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a name so short that sockets fit into it."""
    return tmp_path_factory.mktemp("d") / "dp"


@pytest.fixture(params=["1.20", "1.36", "1.37"])
def kubelet(request: pytest.FixtureRequest, directory: Path, stack: ExitStack) -> StandInKubelet:
    return stack.enter_context(StandInKubelet(directory, behaviour=request.param))


@pytest.fixture
def agent(directory: Path, stack: ExitStack) -> Callable[..., Agent]:
    def start(**options: Any) -> Agent:
        started = Agent(directory, **options)
        stack.callback(started.stop)
        return started

    return start
