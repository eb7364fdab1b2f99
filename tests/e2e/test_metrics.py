"""What a scrape of the agent as a process says of pods that use GPUs, and of those that are gone."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from pod_cgroups import CgroupsUnavailable, pod_cgroup
from prometheus_client.parser import text_string_to_metric_families

from agent.sim.container import Container, SimMount
from agent.sim.driver import made_up_uuid
from agent.sim.node import Ask, RanPod, SimNode
from tests.e2e.conftest import NodeMaker
from tests.waiting import eventually

MIB = 1 << 20
GPU = made_up_uuid(0)
Labels = dict[str, str]


@pytest.fixture
def node(make_node: NodeMaker) -> SimNode:
    flags = ("--accounting-interval", "0.2s", "--process-interval", "0.2s", "--legacy-metrics")
    return make_node(*flags, "--metrics-per-process", "--allocate-budget", "10s", gpus=1)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    """What is to be ended after the test."""
    with ExitStack() as things:
        yield things


def run(
    node: SimNode, name: str, stack: ExitStack, core_percent: int = 30
) -> tuple[RanPod, Container]:
    """A pod with a workload, in a cgroup named as kubelet names a pod's."""
    pod = node.run_pod(name, [Ask(memory_mib=1000, core_percent=core_percent)])
    assert pod.admitted.ok, pod.admitted.message
    grant = pod.admitted.containers["main"]
    mounts = [SimMount(m.container_path, m.host_path, m.read_only) for m in grant.mounts]
    try:
        cgroup = stack.enter_context(pod_cgroup(pod.uid))
    except CgroupsUnavailable as error:
        pytest.skip(str(error))
    container = Container.start(name, driver=node.driver, env=grant.env, mounts=mounts)
    stack.callback(container.stop)
    for pid in tree(container.pid):
        (cgroup.path / "cgroup.procs").write_text(str(pid))
    return pod, container


def tree(pid: int) -> Iterator[int]:
    """A process and its descendants."""
    yield pid
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        yield from tree(int(child))


def values(node: SimNode, name: str, /, **labels: str) -> list[float]:
    """Of the samples that have these labels."""
    return [
        sample.value
        for family in text_string_to_metric_families(node.fetch("/metrics")[1])
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    ]


def test_a_container_is_followed_from_its_grant_to_its_end(node: SimNode, stack: ExitStack) -> None:
    pod, tenant = run(node, "trainer", stack)
    ours = {"namespace": "team", "pod": "trainer", "container": "main", "gpu": GPU}
    hamis = {"namespace": "team", "pod": "trainer", "vdevice_index": "0", "device_uuid": GPU}

    def becomes(name: str, value: float, labels: Labels) -> None:
        eventually(lambda: values(node, name, **labels) == [value], what=f"{name} is {value}")

    becomes("vgpu_container_memory_limit_bytes", 1000 * MIB, ours)
    becomes("vgpu_container_core_limit_ratio", 0.3, ours)
    assert tenant.ask("alloc 300").ok
    becomes("vgpu_container_memory_used_bytes", 300 * MIB, ours)
    becomes("hami_vgpu_memory_used_bytes", 300 * MIB, {**hamis, "zone": "vGPU"})
    becomes("hami_vgpu_memory_buffer_bytes", 300 * MIB, hamis)
    becomes("hami_vgpu_memory_limit_bytes", 1000 * MIB, hamis)
    becomes("vGPU_device_memory_usage_in_bytes", 300 * MIB, {"podname": "trainer"})
    becomes("vgpu_process_memory_used_bytes", 300 * MIB, ours)
    becomes("vgpu_gpu_memory_used_bytes", 300 * MIB, {"gpu": GPU})
    becomes("hami_host_gpu_memory_used_bytes", 300 * MIB, {"node": node.name})
    becomes("vgpu_container_info", 1, {"pod": "trainer", "tier": "hook"})
    assert not tenant.ask("alloc 701").ok
    becomes("vgpu_container_allocations_refused_total", 1, ours)
    becomes("vgpu_container_memory_peak_bytes", 300 * MIB, ours)
    becomes("vgpu_process_allocations_refused_total", 1, ours)
    becomes("vgpu_process_memory_peak_bytes", 300 * MIB, ours)

    tenant.kill()
    node.delete_pod(pod)
    eventually(lambda: '"trainer"' not in node.fetch("/metrics")[1], within_s=60)
    assert values(node, "vgpu_gpu_memory_used_bytes", gpu=GPU) != []


def test_what_was_counted_survives_the_agent(node: SimNode, stack: ExitStack) -> None:
    _, tenant = run(node, "trainer", stack)
    assert tenant.ask("alloc 100").ok
    for _ in range(3):
        assert not tenant.ask("alloc 2000").ok
    refused = "vgpu_container_allocations_refused_total"
    eventually(lambda: values(node, refused, pod="trainer") == [3])
    assert node.stop_agent() == 0
    assert not tenant.ask("alloc 2000").ok
    node.start_agent()
    eventually(lambda: values(node, refused, pod="trainer") == [4], within_s=60)


def test_sharers_of_a_gpu_have_their_own_figures(node: SimNode, stack: ExitStack) -> None:
    for name, mib in (("first", 100), ("second", 200)):
        _, tenant = run(node, name, stack)
        assert tenant.ask(f"alloc {mib}").ok
    used = "vgpu_container_memory_used_bytes"
    eventually(lambda: values(node, used, pod="first") == [100 * MIB])
    eventually(lambda: values(node, used, pod="second") == [200 * MIB])
    eventually(lambda: values(node, "vgpu_gpu_memory_used_bytes", gpu=GPU) == [300 * MIB])


def test_without_a_core_limit_the_driver_says_who_had_how_much_gpu_time(
    node: SimNode, stack: ExitStack
) -> None:
    _, tenant = run(node, "trainer", stack, core_percent=0)
    assert tenant.ask("alloc 100").ok
    seconds = ("vgpu_container_gpu_seconds_total", "vgpu_process_gpu_seconds_total")
    eventually(lambda: [values(node, name, pod="trainer") for name in seconds] == [[0], [0]])
    for pid in tree(tenant.pid):
        node.driver.process(0, pid, 0, kind="graphics", sm_percent=20)
    for name in seconds:
        eventually(lambda name=name: values(node, name, pod="trainer")[0] > 0, what=name)
