"""A GPU that another device plugin has given away is not given once more, and everybody is told."""

import pytest

from agent.sim.driver import made_up_uuid
from agent.sim.kubelet import ContainerSpec, PodSpec
from agent.sim.node import RESOURCE, SimNode
from tests.e2e.conftest import NodeMaker
from tests.e2e.whole import serves, up
from tests.toy_plugin import ToyPlugin, register
from tests.waiting import eventually

FIRST, OTHERS = made_up_uuid(0), "nvidia.com/gpu.shared"


@pytest.fixture
def node(make_node: NodeMaker) -> SimNode:
    return make_node("--owners-interval", "200ms")


def events(node: SimNode) -> list[str]:
    return [e["message"] for e in node.events() if e["reason"] == "GpuHasTwoOwners"]


def test_two_plugins_for_one_gpu(node: SimNode) -> None:
    up(node, 20)
    toy = ToyPlugin(node.kubelet.socket.parent / "toy.sock", [f"{FIRST}::{n}" for n in range(2)])
    try:
        register(node.kubelet, toy, OTHERS)
        eventually(lambda: any("offered to kubelet as " + OTHERS in e for e in events(node)))
        assert node.allocatable() == 20, "an offer alone takes nothing away"

        pod = PodSpec("u-1", "team", "theirs", [ContainerSpec("main", {OTHERS: 1})])
        assert node.kubelet.admit(pod).ok
        eventually(lambda: node.allocatable() == 10, within_s=60)
        eventually(lambda: any("held by team/theirs/main" in e for e in events(node)), within_s=60)
        said = f'vgpu_gpu_rivals{{gpu="{FIRST}",manager="{OTHERS}",state="held"}} 1.0'
        eventually(lambda: said in node.fetch("/metrics")[1], within_s=60)

        node.kubelet.remove("u-1")
        serves(node)
    finally:
        toy.stop()


@pytest.mark.parametrize("behaviour", ["1.36", "1.37"])
def test_a_plugin_that_takes_our_name_over_is_told(make_node: NodeMaker, behaviour: str) -> None:
    """A newer kubelet leaves our stream open: our own registration knows nothing of it."""
    node = make_node("--owners-interval", "200ms", behaviour=behaviour)
    up(node, 20)
    toy = ToyPlugin(node.kubelet.socket.parent / "nvidia-gpu.sock", [FIRST])
    try:
        register(node.kubelet, toy, RESOURCE)
        eventually(lambda: any("taken that name over" in e for e in events(node)), within_s=60)
        eventually(lambda: any("at nvidia-gpu.sock" in e for e in events(node)), within_s=60)
        eventually(lambda: not node.ready(), within_s=60)
    finally:
        toy.stop()
    serves(node)
    eventually(node.ready, within_s=60)


def test_an_older_kubelet_is_not_asked_and_its_checkpoint_tells(make_node: NodeMaker) -> None:
    node = make_node("--owners-interval", "200ms", behaviour="1.20")
    toy = ToyPlugin(node.kubelet.socket.parent / "toy.sock", [f"{FIRST}::{n}" for n in range(2)])
    try:
        register(node.kubelet, toy, OTHERS)
        offered = "offered to kubelet as " + OTHERS
        eventually(lambda: any(offered in e for e in events(node)), within_s=60)
    finally:
        toy.stop()
