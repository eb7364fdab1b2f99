"""What tests of a lone node in mode nvidia have in common: kubelet, no API server, no scheduler."""

from collections.abc import Callable, Mapping

from agent.sim.driver import made_up_uuid
from agent.sim.kubelet import ContainerGrant, ContainerSpec
from agent.sim.lone_node import LoneNode
from tests.waiting import eventually

GPU, SHARED = "nvidia.com/gpu", "nvidia.com/gpu.shared"
FIRST, SECOND = made_up_uuid(0), made_up_uuid(1)
SHARING = """
version: v1
flags:
  migStrategy: none
  plugin: {deviceListStrategy: envvar}
sharing:
  timeSlicing:
    renameByDefault: true
    failRequestsGreaterThanOne: true
    resources:
    - name: nvidia.com/gpu
      replicas: 4
"""

LoneMaker = Callable[..., LoneNode]


def up(node: LoneNode, wanted: Mapping[str, int]) -> None:
    eventually(
        lambda: dict(node.kubelet.node_status().allocatable) == wanted, within_s=60, what="devices"
    )
    eventually(node.ready, within_s=60, what="/readyz")


def given(node: LoneNode, name: str, resources: Mapping[str, int]) -> ContainerGrant:
    pod = node.run_static(name, ContainerSpec("main", resources))
    assert pod.admitted.ok, pod.admitted.message
    return pod.admitted.containers["main"]
