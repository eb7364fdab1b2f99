"""A GPU that another device plugin has given away is not given once more, and everybody is told."""

import pytest

from agent.sim.driver import made_up_uuid
from agent.sim.kubelet import ContainerSpec, PodSpec
from agent.sim.node import SimNode
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
        eventually(lambda: node.allocatable() == 10, within_s=20)
        assert any("held by team/theirs/main" in e for e in events(node))
        said = f'vgpu_gpu_rivals{{gpu="{FIRST}",manager="{OTHERS}",state="held"}} 1.0'
        assert said in node.fetch("/metrics")[1]

        node.kubelet.remove("u-1")
        serves(node)
    finally:
        toy.stop()
