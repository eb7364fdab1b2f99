"""Mode `slices`: kubelet alone, no scheduler, no API server; the agent as a process."""

import json
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.sim.container import Container, SimMount
from agent.sim.driver import SimGpu, made_up_uuid
from agent.sim.kubelet import ContainerGrant, ContainerSpec
from agent.sim.lone_node import LoneNode, StaticPod
from agent.sim.node import RESOURCE
from tests.e2e.conftest import COMMAND, QUICK
from tests.waiting import eventually

MEMORY_MIB = 46068
SLICE_MIB = MEMORY_MIB // 10
SLICES = (
    *("--mode", "slices", "--cache-gc-after", "10s", "--cache-gc-interval", "1s"),
    *("--process-interval", "0.3s", "--accounting-interval", "0.3s", "--bypass-interval", "0.3s"),
)
LoneMaker = Callable[..., LoneNode]


@pytest.fixture
def lone() -> Iterator[LoneMaker]:
    """Make nodes without API server; everything they started is ended after the test."""
    nodes: list[LoneNode] = []

    def make(*flags: str, gpus: int = 2, behaviour: str = "1.36", started: bool = True) -> LoneNode:
        root = Path(tempfile.mkdtemp(prefix="vgpu-e2e-"))
        node = LoneNode(root, COMMAND, behaviour=behaviour, flags=(*QUICK, *SLICES, *flags))
        nodes.append(node.start())
        for number in range(gpus):
            node.driver.add_gpu(
                number,
                SimGpu(uuid=made_up_uuid(number), name="NVIDIA A40", memory_mib=MEMORY_MIB),
            )
        if started:
            node.start_agent()
            eventually(node.ready, within_s=60, what="/readyz")
            eventually(lambda: _all_listed(node), within_s=60, what="vGPUs")
        return node

    yield make
    for node in nodes:
        sys.stderr.write(node.log_text())
        node.stop()
        shutil.rmtree(node.root, ignore_errors=True)


def _all_listed(node: LoneNode) -> bool:
    """Whether kubelet counts, and tells, the devices of every plugin.

    What it does not count is no pod refused for, and what it has not told is no row's to read.
    """
    told = node.kubelet.told
    counted = told.allocatable if told else {}
    registered = {event.resource for event in node.kubelet.history("registered")}
    return any(counted.values()) and registered <= counted.keys()


def asks(count: int, resource: str = RESOURCE, name: str = "main") -> ContainerSpec:
    return ContainerSpec(name=name, resources={resource: count})


def grant_of(pod: StaticPod, name: str = "main") -> ContainerGrant:
    assert pod.admitted.ok, pod.admitted.message
    return pod.admitted.containers[name]


def directory_of(node: LoneNode, grant: ContainerGrant) -> Path:
    """Of its usage region, on the host."""
    inside = str(Path(grant.env["CUDA_DEVICE_MEMORY_SHARED_CACHE"]).parent)
    return next(Path(m.host_path) for m in grant.mounts if m.container_path == inside)


class Running:
    """A container that runs: a real process under the real hook, which the agent sees."""

    def __init__(self, node: LoneNode, pod: StaticPod, name: str = "main") -> None:
        grant = grant_of(pod, name)
        mounts = [SimMount(m.container_path, m.host_path, m.read_only) for m in grant.mounts]
        self.grant = grant
        self.container = Container.start(
            name,
            driver=node.driver,
            env=grant.env,
            mounts=mounts,
            devices=[SimMount(d.container_path, d.host_path) for d in grant.devices],
        )
        node.proc.add(self.container.pid, pod_uid=pod.uid, container=name, mounts=mounts)

    def takes(self, mib: int) -> bool:
        return self.container.ask(f"alloc {mib}").ok


Runner = Callable[..., Running]


@pytest.fixture
def run(request: pytest.FixtureRequest) -> Runner:
    """Start containers; they are stopped after the test."""

    def start(node: LoneNode, pod: StaticPod, name: str = "main") -> Running:
        running = Running(node, pod, name)
        request.addfinalizer(running.container.stop)
        return running

    return start


def use(node: LoneNode) -> list[dict[str, Any]]:
    """The containers, as `vgpu-agent top` tells them."""
    done = node.run_plain("top", "--json", "--socket", str(node.root / "run" / "read.sock"))
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)["containers"]
    return found


def named(node: LoneNode) -> list[str]:
    return sorted(f"{one['namespace']}/{one['pod']}/{one['container']}" for one in use(node))


def limits(node: LoneNode, target: str, *flags: str) -> Any:
    return node.run_plain("limit", target, "--runtime-dir", str(node.root / "run"), *flags)


@pytest.mark.parametrize("behaviour", ["1.20", "1.36"])
def test_a_container_gets_an_enforced_slice_without_an_api_server(
    lone: LoneMaker, run: Runner, behaviour: str
) -> None:
    node = lone(behaviour=behaviour)
    assert node.allocatable() == 20
    pod = node.run_static("web", asks(1))
    assert grant_of(pod).env["CUDA_DEVICE_MEMORY_LIMIT_0"] == f"{SLICE_MIB}m"
    assert grant_of(pod).env["CUDA_DEVICE_SM_LIMIT"] == "10"
    tenant = run(node, pod)
    assert tenant.takes(SLICE_MIB - 600)
    assert not tenant.takes(700), "one byte more than the slice is refused"
    eventually(lambda: named(node) == ["team/web/main"], within_s=60)
    eventually(lambda: _shown(node, "team/web/main")["tier"] == "hook", within_s=60)
    held = "vgpu_container_memory_used_bytes"
    assert eventually(lambda: 'pod="web"' in node.fetch("/metrics")[1], within_s=60), held


def _shown(node: LoneNode, name: str) -> dict[str, Any]:
    return next(
        one for one in use(node) if f"{one['namespace']}/{one['pod']}/{one['container']}" == name
    )


def test_all_slices_can_be_used_up_where_the_driver_keeps_a_part_of_the_gpu(
    lone: LoneMaker, run: Runner
) -> None:
    """NVML's total is with what the driver keeps for itself, of which nobody can have anything."""
    node = lone("--device-split-count", "2", gpus=0, started=False)
    node.driver.add_gpu(0, SimGpu(uuid=made_up_uuid(0), memory_mib=15360, reserved_mib=450))
    node.start_agent()
    eventually(lambda: _all_listed(node), within_s=60, what="vGPUs")
    sides = [run(node, node.run_static(name, asks(1))) for name in ("one", "other")]
    granted = [int(side.grant.env["CUDA_DEVICE_MEMORY_LIMIT_0"].rstrip("m")) for side in sides]
    assert [side.takes(mib) for side, mib in zip(sides, granted, strict=True)] == [True, True]
    assert granted == [7455, 7455]


def test_several_slices_of_a_gpu_add_up(lone: LoneMaker, run: Runner) -> None:
    node = lone()
    grant = grant_of(node.run_static("big", asks(3)))
    assert grant.env["NVIDIA_VISIBLE_DEVICES"].count("GPU-") == 1, "of one GPU, as asked for"
    assert grant.env["CUDA_DEVICE_MEMORY_LIMIT_0"] == f"{3 * SLICE_MIB}m"
    assert grant.env["CUDA_DEVICE_SM_LIMIT"] == "30"


def test_slices_of_distinct_gpus(lone: LoneMaker) -> None:
    node = lone("--slice-gpus", "distinct")
    grant = grant_of(node.run_static("wide", asks(2)))
    assert grant.env["NVIDIA_VISIBLE_DEVICES"].count("GPU-") == 2
    assert grant.env["CUDA_DEVICE_MEMORY_LIMIT_1"] == f"{SLICE_MIB}m"


@pytest.mark.parametrize(
    ("placement", "gpus"),
    [pytest.param("pack", 1, id="pack"), pytest.param("spread", 2, id="spread")],
)
def test_pods_are_packed_or_spread(lone: LoneMaker, placement: str, gpus: int) -> None:
    node = lone("--slice-placement", placement)
    seen = {
        grant_of(node.run_static(name, asks(1))).env["NVIDIA_VISIBLE_DEVICES"] for name in "abcd"
    }
    assert len(seen) == gpus


def test_a_deleted_pod_leaves_nothing_and_its_slice_is_given_again(
    lone: LoneMaker, run: Runner
) -> None:
    node = lone("--device-split-count", "1", gpus=1)
    pod = node.run_static("first", asks(1))
    first = run(node, pod)
    directory = directory_of(node, first.grant)
    eventually(lambda: named(node) == ["team/first/main"], within_s=60)
    first.container.stop()
    node.end_static(pod)
    second = run(node, node.run_static("second", asks(1)))
    assert directory_of(node, second.grant) != directory
    eventually(lambda: named(node) == ["team/second/main"], within_s=60)
    eventually(lambda: not directory.exists(), within_s=90, what="its directory is deleted")
    assert directory_of(node, second.grant).exists()


@pytest.mark.parametrize("behaviour", ["1.22", "1.36"])
def test_a_pod_that_never_ran_leaves_nothing(lone: LoneMaker, behaviour: str) -> None:
    """It is gone before kubelet could say whose its slice was; its checkpoint still lists it."""
    node = lone(gpus=1, behaviour=behaviour)
    stays, gone = node.run_static("stays", asks(1)), node.run_static("gone", asks(1))
    node.end_static(gone)
    directory = directory_of(node, grant_of(gone))
    eventually(lambda: not directory.exists(), within_s=150, what="its directory is deleted")
    assert directory_of(node, grant_of(stays)).exists()


def test_slices_of_a_pod_whose_processes_run_are_not_given_away(
    lone: LoneMaker, run: Runner
) -> None:
    node = lone("--device-split-count", "2", gpus=1)
    first = run(node, node.run_static("first", asks(1)))
    eventually(lambda: named(node) == ["team/first/main"], within_s=60)
    eventually(lambda: _shown(node, "team/first/main")["tier"] == "hook", within_s=60)
    node.kubelet.delete_checkpoint()
    node.kubelet.restart()
    eventually(lambda: node.allocatable() == 2, within_s=60)
    assert node.run_static("other", asks(1)).admitted.ok, "kubelet is told to take the free one"
    refused = node.run_static("second", asks(1)).admitted
    assert not refused.ok
    assert "team/first/main holds, whose processes still run" in refused.message
    first.container.stop()
    assert node.run_static("third", asks(1)).admitted.ok


def test_a_killed_agent_knows_everybody_again(lone: LoneMaker, run: Runner) -> None:
    node = lone("--slice-sizes", "small=8Gi:25,large=24Gi:50", gpus=1)
    large, small = f"{RESOURCE}-large", f"{RESOURCE}-small"
    run(node, node.run_static("one", asks(1, large)))
    eventually(lambda: named(node) == ["team/one/main"], within_s=60)
    node.stop_agent(signal.SIGKILL)
    node.start_agent()
    eventually(node.ready, within_s=60, what="/readyz")
    assert eventually(lambda: _healthy(node) == {large: 1, small: 2}, within_s=60)
    eventually(lambda: named(node) == ["team/one/main"], within_s=60)


def test_an_agent_that_lost_its_state_knows_everybody_again(lone: LoneMaker, run: Runner) -> None:
    """By kubelet's checkpoint, which has our answer; else the files would be nobody's, and go."""
    node = lone(gpus=1)
    tenant = run(node, node.run_static("web", asks(1)))
    directory = directory_of(node, tenant.grant)
    node.stop_agent(signal.SIGKILL)
    shutil.rmtree(node.root / "state")
    node.start_agent()
    eventually(node.ready, within_s=60, what="/readyz")
    eventually(lambda: named(node) == ["team/web/main"], within_s=60)

    def limit_bytes() -> int:
        found: int = _shown(node, "team/web/main")["devices"][0]["memory_limit_bytes"]
        return found

    eventually(lambda: limit_bytes() == SLICE_MIB << 20, within_s=60)
    done = limits(node, "team/web/main", "--memory", "2000Mi")
    assert done.returncode == 0, done.stderr
    assert not tenant.takes(2001), "its limit is still ours to set"
    assert directory.exists()


def _healthy(node: LoneNode) -> dict[str, int]:
    return {
        name: count
        for name, count in node.kubelet.node_status().allocatable.items()
        if name.startswith(f"{RESOURCE}-")
    }


@pytest.mark.parametrize("behaviour", ["1.20", "1.36"])
def test_a_restarted_kubelet_finds_its_slices_and_pods(
    lone: LoneMaker, run: Runner, behaviour: str
) -> None:
    node = lone(behaviour=behaviour)
    tenant = run(node, node.run_static("web", asks(1)))
    node.kubelet.restart()
    eventually(lambda: node.allocatable() == 20, within_s=60)
    eventually(lambda: named(node) == ["team/web/main"], within_s=60)
    assert tenant.takes(SLICE_MIB - 600)
    assert node.run_static("next", asks(1)).admitted.ok


def test_sizes_share_a_gpu_and_what_fits_is_told_at_once(lone: LoneMaker, run: Runner) -> None:
    node = lone("--slice-sizes", "small=8Gi:25,large=24Gi:50", gpus=1)
    large, small = f"{RESOURCE}-large", f"{RESOURCE}-small"
    assert eventually(lambda: _healthy(node) == {large: 1, small: 4}, within_s=60)
    pod = node.run_static("one", asks(1, large))
    assert grant_of(pod).env["CUDA_DEVICE_MEMORY_LIMIT_0"] == "24576m"
    assert grant_of(pod).env["CUDA_DEVICE_SM_LIMIT"] == "50"
    assert eventually(lambda: _healthy(node) == {large: 1, small: 2}, within_s=60)
    two = node.run_static("two", asks(2, small))
    assert grant_of(two).env["CUDA_DEVICE_MEMORY_LIMIT_0"] == "16384m"
    assert eventually(lambda: _healthy(node) == {large: 1, small: 2}, within_s=60)
    refused = node.run_static("three", asks(1, small)).admitted
    assert not refused.ok
    assert "unavailable" in refused.message
    eventually(lambda: named(node) == ["team/one/main", "team/two/main"], within_s=60)
    node.end_static(pod)
    assert eventually(lambda: _healthy(node) == {large: 1, small: 4}, within_s=60)
    assert node.run_static("four", asks(2, small)).admitted.ok


def test_an_init_container_is_served_as_well(lone: LoneMaker, run: Runner) -> None:
    node = lone(gpus=1)
    pod = node.run_static("job", asks(1), init=[asks(1, name="fetch")])
    fetch, main = grant_of(pod, "fetch"), grant_of(pod, "main")
    assert fetch.device_ids == main.device_ids
    assert directory_of(node, fetch) != directory_of(node, main)
    first = run(node, pod, "fetch")
    assert first.takes(SLICE_MIB - 600)
    first.container.stop()
    assert run(node, pod).takes(SLICE_MIB - 600)
    eventually(lambda: named(node) == ["team/job/fetch", "team/job/main"], within_s=60)


def test_limits_are_changed_by_the_pods_name(lone: LoneMaker, run: Runner) -> None:
    node = lone(gpus=1)
    tenant = run(node, node.run_static("web", asks(1)))
    eventually(lambda: named(node) == ["team/web/main"], within_s=60)
    done = limits(node, "team/web/main", "--memory", f"{SLICE_MIB + 1000}Mi")
    assert done.returncode == 0, done.stderr
    assert tenant.takes(SLICE_MIB + 300)
    assert eventually(lambda: node.allocatable() == 9, within_s=60), "the tenth has no room now"
    node.stop_agent(signal.SIGKILL)
    node.start_agent()
    eventually(node.ready, within_s=60, what="/readyz")
    done = limits(node, "web", "--reset")
    assert done.returncode == 0, done.stderr
    assert eventually(lambda: node.allocatable() == 10, within_s=60)


def test_who_is_rid_of_the_library_is_found_out(lone: LoneMaker, run: Runner) -> None:
    node = lone(gpus=1)
    pod = node.run_static("web", asks(1))
    run(node, pod)
    thief = Container.start("thief", driver=node.driver, env={}, isolated=False)
    try:
        mounts = [SimMount(m.container_path, m.host_path) for m in grant_of(pod).mounts]
        node.proc.add(thief.pid, pod_uid=pod.uid, container="main", mounts=mounts)
        assert thief.ask(f"alloc {SLICE_MIB + 2000}").ok
        above = ("web", "main", "above grant")
        assert eventually(lambda: above in _found(node), within_s=60)
    finally:
        thief.stop()


def _found(node: LoneNode) -> list[tuple[str, str, str]]:
    done = node.run_plain("top", "--json", "--socket", str(node.root / "run" / "read.sock"))
    return [(b["pod"], b["container"], b["kind"]) for b in json.loads(done.stdout)["bypasses"]]


def test_uninstall_needs_no_cluster(lone: LoneMaker) -> None:
    node = lone()
    refused = node.run_command("uninstall")
    assert refused.returncode == 1, "an agent runs"
    node.stop_agent()
    done = node.run_command("uninstall")
    assert done.returncode == 0, done.stderr
    assert "in mode slices nothing is written" in done.stdout


def test_doctor_asks_nothing_of_a_cluster(lone: LoneMaker) -> None:
    node = lone("--slice-sizes", "small=8Gi:25")
    wanted = "credentials,node,register,handshake-clock,registered,kubelet-books"
    done = node.run_command("doctor", "--json", "--only", wanted)
    found = {one["name"]: one for one in json.loads(done.stdout or done.stderr)["checks"]}
    for name in ("credentials", "node", "handshake-clock"):
        assert found[name]["verdict"] == "skipped", found[name]
        assert found[name]["evidence"].startswith("not applicable"), found[name]
    assert found["register"]["evidence"] == "needs `credentials`, which is skipped"
    for name in ("registered", "kubelet-books"):
        assert found[name]["verdict"] == "ok", found[name]
