"""Mode `volcano`, end to end: the agent as a process, a stand-in Volcano scheduler and kubelet."""

import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agent.sim.driver import SimGpu, made_up_uuid
from agent.sim.node import Ask, RanPod
from agent.sim.volcano_node import VolcanoNode
from agent.sim.volcano_scheduler import (
    BIND_PHASE,
    CORES,
    LOCK,
    MEMORY,
    NUMBER,
    TIME,
    TO_ALLOCATE,
)
from tests.e2e.conftest import COMMAND, QUICK
from tests.e2e.whole import got_its_claims
from tests.waiting import eventually

NodeMaker = Callable[..., VolcanoNode]
MEMORY_MIB = 46068
FACTOR = 3  # of two such GPUs, see tests/unit/test_volcano_units.py


def up(node: VolcanoNode, gpus: int = 2) -> None:
    """Wait until kubelet has all three resources and the scheduler sees the GPUs."""

    def whole() -> bool:
        allocatable = node.kubelet.node_status().allocatable
        return (
            allocatable.get(NUMBER) == gpus * 10
            and allocatable.get(CORES) == gpus * 100
            and allocatable.get(MEMORY) == gpus * (MEMORY_MIB // node.factor)
        )

    eventually(node.ready, within_s=30, what="/readyz")
    eventually(whole, within_s=20, what="three resources at kubelet")
    eventually(lambda: len(node.volcano.look(node.name)) == gpus, what="GPUs at the scheduler")


@pytest.fixture
def make_node() -> Iterator[NodeMaker]:
    nodes: list[VolcanoNode] = []
    roots: list[Path] = []

    def make(*flags: str, gpus: int = 2, started: bool = True, **more: object) -> VolcanoNode:
        root = Path(tempfile.mkdtemp(prefix="vgpu-e2e-"))
        roots.append(root)
        node = VolcanoNode(root, COMMAND, flags=(*QUICK, *flags), **more)  # type: ignore[arg-type]
        nodes.append(node.start())
        for number in range(gpus):
            node.driver.add_gpu(
                number,
                SimGpu(uuid=made_up_uuid(number), name="NVIDIA A40", memory_mib=MEMORY_MIB),
            )
        if started:
            node.start_agent()
            up(node, gpus)
        return node

    yield make
    for node in nodes:
        sys.stderr.write(node.log_text())
        node.stop()
    for root in roots:
        shutil.rmtree(root, ignore_errors=True)


@pytest.fixture
def node(make_node: NodeMaker) -> VolcanoNode:
    return make_node()


def finished(node: VolcanoNode, pod: RanPod) -> bool:
    annotations = node.pod_annotations(pod.namespace, pod.name)
    return (
        LOCK not in node.annotations()
        and annotations[BIND_PHASE] == "success"
        and annotations[TIME] == "18446744073709551615"
        and "GPU" not in annotations[TO_ALLOCATE]
    )


@pytest.mark.parametrize(
    "asks",
    [
        pytest.param([Ask(memory_mib=3000, core_percent=30)], id="one container"),
        pytest.param([Ask(vgpus=2, memory_mib=3000)], id="one container with two vGPUs"),
        pytest.param(
            [Ask(name="a", memory_mib=2001), Ask(name="b", memory_mib=3000)], id="two containers"
        ),
        pytest.param(
            [Ask(name="a", vgpus=2, memory_mib=999), Ask(name="b", memory_mib=3000)],
            id="two containers that ask for different numbers",
        ),
        pytest.param(
            [Ask(name="log", vgpus=0), Ask(name="a", memory_mib=2001)],
            id="a container without GPU comes first",
        ),
        pytest.param(
            [Ask(name="i", kind="init", vgpus=0), Ask(name="log", vgpus=0), Ask(name="a")],
            id="an init container and one without GPU come first",
        ),
    ],
)
def test_every_container_gets_exactly_its_own_share(node: VolcanoNode, asks: list[Ask]) -> None:
    pod = node.run_pod("pod", asks)
    assert got_its_claims(pod, asks)
    assert eventually(lambda: finished(node, pod))
