"""Mode `slices`: kubelet alone, no scheduler, no API server; the agent as a process."""

import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agent.sim.container import Container, SimMount
from agent.sim.driver import SimGpu, made_up_uuid
from agent.sim.kubelet import ContainerGrant, ContainerSpec
from agent.sim.lone_node import LoneNode, StaticPod
from agent.sim.node import RESOURCE
from tests.e2e.conftest import COMMAND, QUICK
from tests.waiting import eventually

MEMORY_MIB = 46068
LoneMaker = Callable[..., LoneNode]


@pytest.fixture
def lone() -> Iterator[LoneMaker]:
    """Make nodes without API server; everything they started is ended after the test."""
    nodes: list[LoneNode] = []

    def make(*flags: str, gpus: int = 2, behaviour: str = "1.36", started: bool = True) -> LoneNode:
        root = Path(tempfile.mkdtemp(prefix="vgpu-e2e-"))
        node = LoneNode(
            root, COMMAND, behaviour=behaviour, flags=(*QUICK, "--mode", "slices", *flags)
        )
        nodes.append(node.start())
        for number in range(gpus):
            node.driver.add_gpu(
                number,
                SimGpu(uuid=made_up_uuid(number), name="NVIDIA A40", memory_mib=MEMORY_MIB),
            )
        if started:
            node.start_agent()
            eventually(node.ready, within_s=30, what="/readyz")
        return node

    yield make
    for node in nodes:
        sys.stderr.write(node.log_text())
        node.stop()
        shutil.rmtree(node.root, ignore_errors=True)


def asks(count: int, resource: str = RESOURCE, name: str = "main") -> ContainerSpec:
    return ContainerSpec(name=name, resources={resource: count})


def grant_of(pod: StaticPod, name: str = "main") -> ContainerGrant:
    assert pod.admitted.ok, pod.admitted.message
    return pod.admitted.containers[name]


def started(node: LoneNode, grant: ContainerGrant) -> Container:
    return Container.start(
        "tenant",
        driver=node.driver,
        env=grant.env,
        mounts=[SimMount(m.container_path, m.host_path, m.read_only) for m in grant.mounts],
        devices=[SimMount(d.container_path, d.host_path) for d in grant.devices],
    )


@pytest.mark.parametrize("behaviour", ["1.20", "1.36"])
def test_a_container_gets_an_enforced_slice_without_an_api_server(
    lone: LoneMaker, behaviour: str
) -> None:
    node = lone(behaviour=behaviour)
    assert node.allocatable() == 20
    grant = grant_of(node.run_static("web", asks(1)))
    slice_mib = MEMORY_MIB // 10
    assert grant.env["CUDA_DEVICE_MEMORY_LIMIT_0"] == f"{slice_mib}m"
    assert grant.env["CUDA_DEVICE_SM_LIMIT"] == "10"
    tenant = started(node, grant)
    try:
        assert tenant.ask(f"alloc {slice_mib - 600}").ok
        assert not tenant.ask("alloc 700").ok
    finally:
        tenant.stop()
