"""The agent is killed at every write boundary while it makes a GPU instance: nothing is double.

As in test_killed_agent.py: a few boundaries, spread; all of them with VGPU_TEST_FAULTS=all.
"""

import json
import os
import signal
from pathlib import Path

import pytest

from agent.sim.driver import SimGpu, made_up_uuid
from agent.sim.node import Ask, RanPod, SimNode
from agent.sim.scheduler import LOCK
from agent.sim.scheduler_mig import MIG_ALLOCATIONS
from tests.e2e.conftest import NodeMaker
from tests.faults.breaking import breaking_node, spread
from tests.waiting import eventually

FEW, MOST = (200, 200) if os.environ.get("VGPU_TEST_FAULTS") == "all" else (4, 4)
A100 = SimGpu(
    uuid=made_up_uuid(0), name="NVIDIA A100-SXM4-40GB", memory_mib=40960, compute_capability="8.0"
)
Place = tuple[int, int]


def instances(node: SimNode) -> list[Place]:
    """Start and size of the GPU instances, and each has its compute instance."""
    path = node.driver.config_path
    lines = [line.split() for line in path.with_name(f"{path.name}.mig").read_text().splitlines()]
    found = sorted((int(line[4]), int(line[5])) for line in lines if line[0] == "gi")
    return found if sum(line[0] == "ci" for line in lines) == len(found) else []


def decided(node: SimNode, pods: list[RanPod]) -> list[Place]:
    """Where the instances of these pods belong, by their annotations."""
    entries = [
        one
        for pod in pods
        for one in json.loads(node.pod_annotations(pod.namespace, pod.name)[MIG_ALLOCATIONS])
    ]
    return sorted((one["placement"]["start"], one["placement"]["size"]) for one in entries)


def up(node: SimNode) -> None:
    eventually(lambda: node.allocatable() == 7, within_s=40, what="instances at kubelet")
    eventually(node.ready, within_s=20, what="/readyz")


@pytest.mark.timeout(900)
def test_while_an_instance_is_made(make_node: NodeMaker, tmp_path: Path) -> None:
    node, breaking = breaking_node(make_node, tmp_path, gpus=0, started=False)
    node.flags += [
        *("--operating-mode", "mig", "--mig-apply-lock", str(node.root / "apply.lock")),
        *("--allocate-budget", "10s"),
    ]
    node.driver.add_gpu(0, A100)
    node.start_agent()
    up(node)
    asks = [Ask(name="a", memory_mib=4000), Ask(name="b", memory_mib=9000)]
    breaking.order("kill", 0)
    first = node.run_pod("first", asks)
    boundaries = len(breaking.trail())
    assert {"mig-book-written", "mig-instance-made"} <= set(breaking.trail())
    node.delete_pod(first)
    eventually(lambda: instances(node) == [], within_s=30)
    killed = []
    for at in spread(boundaries, FEW):
        uid = node.create_pod(f"pod-{at}", asks)
        claims = node.place_pod(f"pod-{at}", asks)
        breaking.order("kill", at)
        pod = node.offer(f"pod-{at}", uid, asks, claims)
        if breaking.reached():
            assert node.agent is not None
            assert node.agent.wait(10) == -signal.SIGKILL
            killed.append(breaking.reached())
            breaking.lift()
            node.start_agent()
        breaking.lift()
        up(node)
        eventually(lambda: LOCK not in node.annotations(), within_s=40, what="lock released")
        wanted = decided(node, [pod]) if pod.admitted.ok else []
        eventually(
            lambda wanted=wanted: instances(node) == wanted, within_s=40,
            what=f"{wanted} after a kill at {killed[-1:]}",
        )  # fmt: skip
        after = node.run_pod(f"after-{at}", [Ask(memory_mib=4000)])
        assert after.admitted.ok, after.admitted.message
        for gone in (pod, after):
            node.delete_pod(gone)
        eventually(lambda: instances(node) == [], within_s=40, what="nothing is left")
    assert killed
