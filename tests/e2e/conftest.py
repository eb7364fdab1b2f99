"""A simulated node with the agent as a process, for every test of this folder."""

import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from agent.sim.driver import SimGpu, made_up_uuid
from agent.sim.lone_node import LoneNode
from agent.sim.node import SimNode
from tests.e2e.lone_nodes import FIRST, SECOND, LoneMaker
from tests.e2e.whole import up

ROOT = Path(__file__).resolve().parents[2]
# The program under test: from source, or the release (`build.py test --bundle` says which).
FROZEN = os.environ.get("VGPU_TEST_AGENT")
COMMAND = [FROZEN] if FROZEN else [sys.executable, str(ROOT / "agent.py")]
QUICK = ("--probe-interval", "0.5s", "--recovery-probes", "2", "--device-split-count", "10")

NodeMaker = Callable[..., SimNode]


@pytest.fixture
def make_node() -> Iterator[NodeMaker]:
    """Make nodes; everything they started is ended after the test, its log shown if it failed."""
    nodes: list[SimNode] = []
    roots: list[Path] = []

    def make(
        *flags: str,
        gpus: int = 2,
        started: bool = True,
        behaviour: str = "1.36",
        release: str = "2.10",
        command: list[str] | None = None,
        environ: dict[str, str] | None = None,
    ) -> SimNode:
        root = Path(tempfile.mkdtemp(prefix="vgpu-e2e-"))  # short: unix sockets live in it
        roots.append(root)
        more = {"environ": environ} if environ is not None else {}
        node = SimNode(
            root,
            command or COMMAND,
            behaviour=behaviour,
            release=release,
            flags=(*QUICK, *flags),
            **more,
        )
        nodes.append(node.start())
        for number in range(gpus):
            node.driver.add_gpu(
                number, SimGpu(uuid=made_up_uuid(number), name="NVIDIA A40", memory_mib=46068)
            )
        if started:
            node.start_agent()
            up(node, gpus * 10)
        return node

    yield make
    for node in nodes:
        sys.stderr.write(node.log_text())
        node.stop()
    for root in roots:
        shutil.rmtree(root, ignore_errors=True)


@pytest.fixture
def node(make_node: NodeMaker) -> SimNode:
    """A node with two GPUs, its agent ready."""
    return make_node()


@pytest.fixture
def lone() -> Iterator[LoneMaker]:
    """Make nodes; everything they started is ended after the test."""
    nodes: list[LoneNode] = []

    def make(
        *flags: str,
        gpus: Mapping[int, SimGpu] | None = None,
        config: str = "",
        programs: Path | None = None,
        behaviour: str = "1.36",
        linked: tuple[int, int] | None = None,
        started: bool = True,
    ) -> LoneNode:
        root = Path(tempfile.mkdtemp(prefix="vgpu-e2e-"))
        if config:
            (root / "config.yaml").write_text(config)
            flags = (*flags, "--config-file", str(root / "config.yaml"))
        node = LoneNode(
            root,
            COMMAND,
            behaviour=behaviour,
            flags=("--probe-interval", "0.5s", "--mode", "nvidia", *flags),
            environ={"PATH": f"{programs}:{os.environ['PATH']}"} if programs else None,
        )
        nodes.append(node.start())
        for number, gpu in (gpus or {0: SimGpu(uuid=FIRST), 1: SimGpu(uuid=SECOND)}).items():
            node.driver.add_gpu(number, gpu)
        if linked:
            node.driver.nvlink(*linked, links=12)
        if started:
            node.start_agent()
        return node

    yield make
    for node in nodes:
        sys.stderr.write(node.log_text())
        node.stop()
        shutil.rmtree(node.root, ignore_errors=True)
