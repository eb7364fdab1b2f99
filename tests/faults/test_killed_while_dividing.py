"""The agent is killed at every write boundary while it makes and takes back GPU instances: nothing is double.

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
from tests.faults.invariants import violations
from tests.waiting import eventually

FEW, MOST = (200, 200) if os.environ.get("VGPU_TEST_FAULTS") == "all" else (4, 4)
A100 = SimGpu(
    uuid=made_up_uuid(0), name="NVIDIA A100-SXM4-40GB", memory_mib=40960, compute_capability="8.0"
)
OURS = "vgpu-agent\n"
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
    eventually(lambda: node.allocatable() == 7, within_s=60, what="instances at kubelet")
    eventually(node.ready, within_s=60, what="/readyz")


@pytest.mark.timeout(1800)
def test_while_instances_are_made_and_taken_back(make_node: NodeMaker, tmp_path: Path) -> None:
    node, breaking = breaking_node(make_node, tmp_path, gpus=0, started=False)
    node.flags += [
        *("--operating-mode", "mig", "--mig-apply-lock", str(node.root / "apply.lock")),
        *("--allocate-budget", "10s"),
    ]
    node.driver.add_gpu(0, A100)
    node.start_agent()
    up(node)
    asks = [Ask(name="a", memory_mib=4000), Ask(name="b", memory_mib=9000)]
    lock = node.root / "apply.lock"

    def divided(name: str, trail: list[str] | None = None, at: int = 0) -> tuple[RanPod, bool]:
        """A pod comes and goes; whether it still was there when the agent died, if it did."""
        lock.write_text(OURS)  # of an agent that was killed before
        uid = node.create_pod(name, asks)
        claims = node.place_pod(name, asks)
        if trail:
            breaking.order_like("kill", trail, at)
        else:
            breaking.order("kill", 0)
        pod = node.offer(name, uid, asks, claims)
        if breaking.reached() or not pod.admitted.ok:
            return pod, True
        node.delete_pod(pod)
        eventually(lambda: breaking.reached() or instances(node) == [], within_s=60)
        return pod, False

    divided("first")
    eventually(lambda: "mig-instance-destroyed" in breaking.trail(), within_s=60)
    trail = breaking.trail()
    assert {"mig-book-written", "mig-instance-made", "mig-apply-lock-removed"} <= set(trail)
    killed = []
    for at in spread(len(trail), FEW):
        pod, there = divided(f"pod-{at}", trail, at)
        if breaking.reached():
            assert node.agent is not None
            assert node.agent.wait(10) == -signal.SIGKILL
            killed.append(breaking.reached())
            breaking.lift()
            node.start_agent()
        breaking.lift()
        up(node)
        eventually(lambda: LOCK not in node.annotations(), within_s=60, what="lock released")
        wanted = decided(node, [pod]) if pod.admitted.ok and there else []
        eventually(
            lambda wanted=wanted: instances(node) == wanted, within_s=60,
            what=f"{wanted} after a kill at {killed[-1:]}",
        )  # fmt: skip
        after = node.run_pod(f"after-{at}", [Ask(memory_mib=4000)])
        assert after.admitted.ok, after.admitted.message
        eventually(lambda: not violations(node), within_s=60, what="books in order")
        for gone in (pod, after):
            node.delete_pod(gone)
        eventually(lambda: instances(node) == [], within_s=60, what="nothing is left")
    assert killed
