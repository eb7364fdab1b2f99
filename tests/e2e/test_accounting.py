"""The agent as a process accounts for containers: tenants that lie, kills, and HAMi's containers."""

import os
import shutil
import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from made_regions import LAYOUTS, MIB, MadeSlot, made
from pod_cgroups import CgroupsUnavailable, pod_cgroup

from agent.sim.container import Container, SimMount
from agent.sim.driver import made_up_uuid
from agent.sim.node import Ask, RanPod, SimNode
from tests.e2e.conftest import NodeMaker
from tests.waiting import eventually

GPU = made_up_uuid(0)
DATA_AT, TOTAL_AT = 1856 + 8 + 16, 1856 + 8 + 32  # of the first slot's first device
CHARGED_AT = 2031616 + 64 + 80
USED = "vgpu_container_memory_used_bytes"
DISAGREES = "vgpu_container_accounting_disagrees"
SECONDS = "vgpu_container_gpu_seconds_total"


@pytest.fixture
def node(make_node: NodeMaker) -> SimNode:
    return make_node(
        "--accounting-interval", "0.2s", "--process-interval", "0.2s", "--allocate-budget", "10s",
        gpus=1,
    )  # fmt: skip


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as things:
        yield things


def run(node: SimNode, stack: ExitStack) -> tuple[RanPod, Container]:
    """A pod with a workload, in a cgroup named as kubelet names a pod's."""
    pod = node.run_pod("pod", [Ask(memory_mib=4000)])
    assert pod.admitted.ok, pod.admitted.message
    grant = pod.admitted.containers["main"]
    mounts = [SimMount(m.container_path, m.host_path, m.read_only) for m in grant.mounts]
    try:
        cgroup = stack.enter_context(pod_cgroup(pod.uid))
    except CgroupsUnavailable as error:
        pytest.skip(str(error))
    tenant = Container.start("pod", driver=node.driver, env=grant.env, mounts=mounts)
    stack.callback(tenant.stop)
    pids = [tenant.pid]
    for pid in pids:
        pids += map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
        (cgroup.path / "cgroup.procs").write_text(str(pid))
    return pod, tenant


def directory(node: SimNode, uid: str) -> Path:
    return node.root / "host" / "vgpu" / "containers" / f"{uid}_main"


def write(node: SimNode, pod: RanPod, at: int, value: int) -> None:
    """Into the region, as any process of the container can."""
    [region] = directory(node, pod.uid).glob("*.cache")
    with region.open("r+b") as file:
        os.pwrite(file.fileno(), struct.pack("<Q", value), at)


def value(node: SimNode, name: str) -> float | None:
    """Of the only sample of that name."""
    for line in node.fetch("/metrics")[1].splitlines():
        if line.startswith(name + "{"):
            return float(line.rpartition(" ")[2])
    return None


def test_a_tenant_that_counts_less_than_it_holds_is_reported(
    node: SimNode, stack: ExitStack
) -> None:
    pod, tenant = run(node, stack)
    assert tenant.ask("alloc 3000").ok
    eventually(lambda: value(node, USED) == 3000 * MIB)
    eventually(lambda: value(node, "vgpu_container_memory_driver_bytes") == 3000 * MIB)
    assert value(node, DISAGREES) == 0
    write(node, pod, DATA_AT, 0)
    write(node, pod, TOTAL_AT, 0)
    eventually(lambda: value(node, DISAGREES) == 1)
    [event] = eventually(
        lambda: [e for e in node.events() if e["reason"] == "VgpuAccountingDisagrees"]
    )
    assert "counts 0 MiB" in event["message"]
    assert "sees 3000 MiB" in event["message"]
    assert event["involvedObject"]["name"] == "pod"
    write(node, pod, DATA_AT, 3000 * MIB)
    write(node, pod, TOTAL_AT, 3000 * MIB)
    eventually(lambda: value(node, DISAGREES) == 0)
    tenant.kill()
    eventually(lambda: value(node, USED) == 0, what="the dead do not count")


def sample(node: SimNode, name: str, label: str) -> float | None:
    """Of the sample with this label."""
    for line in node.fetch("/metrics")[1].splitlines():
        if line.startswith(name + "{") and label in line:
            return float(line.rpartition(" ")[2])
    return None


SPOILED: dict[str, tuple[Callable[[SimNode, RanPod, Path], None], str]] = {
    "magic 0": (lambda node, pod, region: write(node, pod, 0, 0), "wiped"),
    "unlinked": (lambda node, pod, region: region.unlink(), "removed"),
    "no GPUs": (lambda node, pod, region: write(node, pod, 56, 0), "gpu missing"),
}


@pytest.mark.parametrize(("spoil", "reason"), SPOILED.values(), ids=SPOILED)
def test_a_tenant_that_takes_its_accounting_away_is_reported(
    node: SimNode, stack: ExitStack, spoil: Callable[[SimNode, RanPod, Path], None], reason: str
) -> None:
    pod, tenant = run(node, stack)
    assert tenant.ask("alloc 3000").ok
    eventually(lambda: value(node, USED) == 3000 * MIB)
    eventually(lambda: value(node, "vgpu_container_enforced") == 1)
    [region] = directory(node, pod.uid).glob("*.cache")
    spoil(node, pod, region)
    eventually(lambda: sample(node, "vgpu_region_rejected_total", f'reason="{reason}"'))
    eventually(lambda: value(node, DISAGREES) == 1)
    assert value(node, USED) is None
    eventually(lambda: sample(node, "vgpu_container_enforced", 'reason="foreign region"') == 0)
    eventually(
        lambda: (
            {"VgpuAccountingDisagrees", "VgpuLimitsNotEnforced"}
            <= {event["reason"] for event in node.events()}
        )
    )


def test_counters_only_go_on_when_the_agent_is_killed_and_the_tenant_lies(
    node: SimNode, stack: ExitStack
) -> None:
    pod, tenant = run(node, stack)
    assert tenant.ask("alloc 1").ok
    write(node, pod, CHARGED_AT, 1 << 62)
    # No GPU gives more seconds than pass, so it takes a while to get that far.
    eventually(lambda: (value(node, SECONDS) or 0) > 0.5, within_s=60)
    assert node.agent is not None
    before = value(node, SECONDS)
    assert before is not None
    node.agent.kill()
    node.agent.wait(10)
    write(node, pod, CHARGED_AT, 0)
    node.start_agent()
    after = eventually(lambda: value(node, SECONDS), within_s=60)
    assert before <= after < 3600


def test_a_container_of_hamis_plugin_is_told_of(node: SimNode) -> None:
    """It was granted before the agent came: a directory with HAMi-core's file, and a pod."""
    uid = node.create_pod("old", [Ask(memory_mib=700)])
    node.place_pod("old", [Ask(memory_mib=700)])
    (place := directory(node, uid)).mkdir(parents=True)
    place.parent.chmod(0o755)
    for name, layout in LAYOUTS.items():
        if name == "ours":
            continue
        raw = made(layout, [MadeSlot(pid=7, data=300 * MIB)], uuids=[GPU])
        (place / "new").write_bytes(raw)
        (place / "new").rename(place / "x.cache")
        eventually(lambda: value(node, USED) == 300 * MIB, within_s=60, what=name)
        assert 'tier="hami-core"' in node.fetch("/metrics")[1]
        (place / "x.cache").write_bytes(b"\xff" * len(raw))
        eventually(lambda: value(node, USED) is None)
        assert 'vgpu_region_rejected_total{reason="foreign"}' in node.fetch("/metrics")[1]
    shutil.rmtree(place)
    eventually(lambda: '"old"' not in node.fetch("/metrics")[1])
