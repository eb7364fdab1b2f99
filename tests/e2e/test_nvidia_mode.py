"""Mode nvidia, the agent as a process on the simulated node: no API server, no scheduler."""

from collections.abc import Mapping

from agent.sim.kubelet import ContainerGrant, ContainerSpec, PodSpec
from agent.sim.node import SimNode
from tests.e2e.conftest import NodeMaker
from tests.waiting import eventually

GPU = "nvidia.com/gpu"


def up(node: SimNode, wanted: Mapping[str, int]) -> None:
    eventually(
        lambda: dict(node.kubelet.node_status().allocatable) == wanted, within_s=20, what="devices"
    )
    eventually(node.ready, within_s=20, what="/readyz")


def run(node: SimNode, name: str, resources: Mapping[str, int]) -> ContainerGrant:
    spec = PodSpec(name, "team", name, [ContainerSpec("main", resources)])
    admitted = node.kubelet.admit(spec)
    assert admitted.ok, admitted.message
    return admitted.containers["main"]


def test_whole_gpus(make_node: NodeMaker) -> None:
    node = make_node("--mode", "nvidia", started=False)
    node.start_agent()
    up(node, {GPU: 2})
    first, second = run(node, "a", {GPU: 1}), run(node, "b", {GPU: 1})
    seen = {first.env["NVIDIA_VISIBLE_DEVICES"], second.env["NVIDIA_VISIBLE_DEVICES"]}
    assert seen == node.kubelet.resources()[GPU].healthy
    assert set(first.env) == {"NVIDIA_VISIBLE_DEVICES"}
    assert not (first.mounts or first.devices or first.annotations or first.cdi_devices)
