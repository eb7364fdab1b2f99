"""Operating mode mig: the scheduler decides on an instance, the agent makes it on the GPU."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

from agent.sim.driver import SimGpu, made_up_uuid
from agent.sim.kubelet import ContainerSpec, PodSpec
from agent.sim.node import Ask, RanPod, SimNode
from agent.sim.scheduler_mig import MIG_ALLOCATIONS
from agent.sim.scheduler_wire import SeenGpu
from tests.e2e.conftest import NodeMaker
from tests.e2e.whole import env_of, finished
from tests.toy_plugin import ToyPlugin, register
from tests.waiting import eventually

UUID = made_up_uuid(0)
A100 = SimGpu(uuid=UUID, name="NVIDIA A100-SXM4-40GB", memory_mib=40960, compute_capability="8.0")
OTHERS = "nvidia.com/mig-1g.5gb"
SMALL, LARGE = Ask(memory_mib=4000), Ask(memory_mib=9000)


@dataclass(frozen=True)
class Device:
    """A MIG device that exists, as another program on the node sees it."""

    uuid: str
    gpu_instance: int
    memory_mib: int


LOOK = """
import json, pynvml as n
n.nvmlInit(); gpu = n.nvmlDeviceGetHandleByIndex(0); found = []
for i in range(n.nvmlDeviceGetMaxMigDeviceCount(gpu)):
    try: mig = n.nvmlDeviceGetMigDeviceHandleByIndex(gpu, i)
    except n.NVMLError: continue
    found.append([n.nvmlDeviceGetUUID(mig), n.nvmlDeviceGetGpuInstanceId(mig),
                  n.nvmlDeviceGetAttributes(mig).memorySizeMB])
print(json.dumps(found))
"""
FOREIGN = """
import pynvml as n
n.nvmlInit(); gpu = n.nvmlDeviceGetHandleByIndex(0)
n.nvmlDeviceSetMigMode(gpu, 1)
n.nvmlGpuInstanceCreateComputeInstance(n.nvmlDeviceCreateGpuInstance(gpu, 19), 0)
"""


def run_on(node: SimNode, program: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=dict(os.environ) | node.driver.environment(),
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return done.stdout


def devices(node: SimNode, gpu: int = 0) -> list[Device]:
    look = LOOK.replace("ByIndex(0)", f"ByIndex({gpu})")
    return [Device(*one) for one in json.loads(run_on(node, look))]


def entries(node: SimNode, pod: RanPod) -> list[dict[str, object]]:
    return list(json.loads(node.pod_annotations(pod.namespace, pod.name)[MIG_ALLOCATIONS]))


@pytest.fixture
def divided(make_node: NodeMaker) -> Callable[..., SimNode]:
    """A node with one A100 that is divided as the scheduler decides."""

    def make(
        *flags: str, before: Callable[[SimNode], None] = lambda _: None, release: str = "2.10"
    ) -> SimNode:
        lock = ("--operating-mode", "mig", "--mig-apply-lock")
        node = make_node(*flags, gpus=0, started=False, release=release)
        node.flags += [*lock, str(node.root / "apply.lock")]
        node.driver.add_gpu(0, A100)
        before(node)
        node.start_agent()
        return node

    return make


def up(node: SimNode, vgpus: int = 7) -> None:
    eventually(lambda: node.allocatable() == vgpus, within_s=60, what=f"{vgpus} instances")
    eventually(node.ready, within_s=60, what="/readyz")


def announced(node: SimNode) -> list[SeenGpu]:
    """The GPUs that the scheduler knows of now."""
    node.scheduler.handshake_once(node.name)
    return node.scheduler.nodes.get(node.name, [])


def test_a_pod_gets_an_instance_at_the_very_place(divided: Callable[..., SimNode]) -> None:
    node = divided()
    up(node)
    pod = node.run_pod("pod", [SMALL])
    ((claim,),) = pod.claims
    assert claim.instance == ("1g.5gb", 6, 1)  # HAMi starts such ones from the end
    (device,) = devices(node)
    assert env_of(pod) == {"NVIDIA_VISIBLE_DEVICES": device.uuid}
    assert not pod.admitted.containers["main"].mounts
    assert (device.gpu_instance, device.memory_mib) == (13, 4864)
    (entry,) = entries(node, pod)
    assert entry["placement"] == {"start": 6, "size": 1}
    assert entry["migUUID"] == device.uuid
    assert (entry["gpuInstanceID"], entry["computeInstanceID"]) == (13, 0)
    assert eventually(lambda: finished(node, pod))


def test_containers_share_a_gpu_and_leave_nothing_behind(divided: Callable[..., SimNode]) -> None:
    node = divided()
    up(node)
    first = node.run_pod("first", [Ask(name="log", vgpus=0), Ask(name="a", memory_mib=4000),
                                   Ask(name="b", memory_mib=18000)])  # fmt: skip
    second = node.run_pod("second", [LARGE])
    for pod, name in ((first, "a"), (first, "b"), (second, "main")):
        env_of(pod, name)
    assert sorted(one.memory_mib for one in devices(node)) == [4864, 9856, 19968]
    node.delete_pod(first)
    left = env_of(second)["NVIDIA_VISIBLE_DEVICES"]
    assert eventually(lambda: [one.uuid for one in devices(node)] == [left], within_s=60)


def test_an_app_gets_the_instance_that_its_init_container_had(
    divided: Callable[..., SimNode],
) -> None:
    """Schedulers after HAMi 2.10 choose the same place for both: they never run together."""
    node = divided(release="master")
    up(node)
    asks = [Ask(name="load", kind="init", memory_mib=4000), SMALL]
    pod = node.run_pod("pod", asks)
    assert pod.claims[0] == pod.claims[1]
    (device,) = devices(node)
    assert {env_of(pod, name)["NVIDIA_VISIBLE_DEVICES"] for name in ("load", "main")} == {
        device.uuid
    }
    assert [one["migUUID"] for one in entries(node, pod)] == [device.uuid, device.uuid]
    assert eventually(lambda: finished(node, pod))
    node.delete_pod(pod)
    assert eventually(lambda: not devices(node), within_s=60)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=["ended", "killed"])
def test_instances_are_taken_up_after_a_restart(
    divided: Callable[..., SimNode], number: signal.Signals
) -> None:
    node = divided()
    up(node)
    pod = node.run_pod("pod", [SMALL])
    before = devices(node)
    node.stop_agent(number)
    node.start_agent()
    up(node)
    again = node.run_pod("again", [LARGE])
    assert len(devices(node)) == 2
    assert before[0] in devices(node)
    node.delete_pod(pod)
    node.delete_pod(again)
    assert eventually(lambda: devices(node) == [], within_s=60)


def test_what_lay_on_an_idle_gpu_is_taken_away(divided: Callable[..., SimNode]) -> None:
    node = divided(before=lambda node: run_on(node, FOREIGN) and None)
    up(node)
    assert eventually(lambda: devices(node) == [], within_s=60)


def test_a_gpu_that_is_busy_is_left_alone(divided: Callable[..., SimNode]) -> None:
    def use(node: SimNode) -> None:
        run_on(node, FOREIGN)
        node.driver.process(0, 4321, 100, instance=(7, 0))

    node = divided(before=use)
    up(node)
    (foreign,) = devices(node)
    pod = node.run_pod("pod", [SMALL])
    assert pod.admitted.ok
    assert foreign in devices(node)
    node.driver.end_process(4321)
    own = env_of(pod)["NVIDIA_VISIBLE_DEVICES"]
    assert eventually(lambda: [one.uuid for one in devices(node)] == [own], within_s=60)


def test_mig_is_enabled_as_soon_as_nobody_uses_the_gpu(divided: Callable[..., SimNode]) -> None:
    node = divided(before=lambda node: node.driver.process(0, 4321, 100))
    eventually(lambda: "gpu_not_divided" in node.log_text(), within_s=60)
    assert node.allocatable() == 0
    node.driver.end_process(4321)
    up(node)


def test_while_hami_divides_gpus_the_node_is_not_ready(divided: Callable[..., SimNode]) -> None:
    node = divided()
    up(node)
    lock = node.root / "apply.lock"
    lock.touch()
    status, text = node.fetch("/readyz")
    assert status == 503
    assert f"{lock} says that GPUs are being divided by HAMi's device plugin" in text
    assert not node.run_pod("early", [SMALL]).admitted.ok
    lock.unlink()
    up(node)
    assert env_of(node.run_pod("late", [SMALL]))


def test_a_pod_that_cannot_be_served_leaves_no_instance(divided: Callable[..., SimNode]) -> None:
    node = divided()
    up(node)
    node.driver.fail("nvmlGpuInstanceCreateComputeInstance", 23)
    pod = node.run_pod("pod", [SMALL])
    assert not pod.admitted.ok
    assert "delete the pod" in pod.admitted.message
    node.driver.heal()
    assert devices(node) == []
    following = node.run_pod("next", [SMALL])
    assert eventually(lambda: finished(node, following))


def test_the_metrics_name_the_device_of_each_container(divided: Callable[..., SimNode]) -> None:
    node = divided("--legacy-metrics")
    up(node)
    pod = node.run_pod("pod", [SMALL])
    uuid = env_of(pod)["NVIDIA_VISIBLE_DEVICES"]

    def shown(name: str) -> list[str]:
        lines = node.fetch("/metrics")[1].splitlines()
        return [line for line in lines if line.startswith(f"{name}{{")]

    assert eventually(lambda: len(shown("hami_mig_device_info")) == 1, within_s=60)
    (line,) = shown("hami_mig_device_info")
    for label in (f'mig_uuid="{uuid}"', 'profile="1g.5gb"', 'pod="pod"', 'gpu_instance_id="13"'):
        assert label in line
    assert len(shown("MigInfo")) == 1
    node.delete_pod(pod)
    assert eventually(lambda: not shown("hami_mig_device_info"), within_s=60)


def test_what_a_container_has_through_another_plugin_stays(divided: Callable[..., SimNode]) -> None:
    """NVIDIA's plugin gave it away; the container has it, but no process on it."""
    made: list[ToyPlugin] = []

    def give_away(node: SimNode) -> None:
        node.driver.add_gpu(1, replace(A100, uuid=made_up_uuid(1)))
        for gpu in (0, 1):
            run_on(node, FOREIGN.replace("ByIndex(0)", f"ByIndex({gpu})"))
        (foreign,) = devices(node)
        made.append(ToyPlugin(node.kubelet.socket.parent / "toy.sock", [foreign.uuid]))
        register(node.kubelet, made[0], OTHERS)
        spec = PodSpec("u-1", "team", "theirs", [ContainerSpec("main", {OTHERS: 1})])
        eventually(lambda: node.kubelet.node_status().allocatable.get(OTHERS) == 1, within_s=60)
        assert node.kubelet.admit(spec).ok

    node = divided("--owners-interval", "200ms", before=give_away)
    try:
        eventually(lambda: not devices(node, 1), within_s=60, what="the idle one is gone")
        assert len(devices(node)) == 1
        node.kubelet.remove("u-1")
        assert eventually(lambda: not devices(node), within_s=60)
    finally:
        made[0].stop()


def test_after_a_restart_of_the_node_pods_are_told_that_their_devices_are_gone(
    divided: Callable[..., SimNode],
) -> None:
    node = divided()
    up(node)
    pod = node.run_pod("pod", [SMALL])
    env_of(pod)
    node.stop_agent(signal.SIGKILL)
    state = node.driver.config_path.with_name(f"{node.driver.config_path.name}.mig")
    state.unlink()  # neither the mode nor the instances are there any more
    node.start_agent()
    up(node)
    assert eventually(
        lambda: [e["message"] for e in node.events() if e["reason"] == "MigDeviceGone"], within_s=60
    )
    assert devices(node) == []
    node.delete_pod(pod)
    assert eventually(lambda: announced(node), within_s=60)  # not before the GPU is divided again
    following = node.run_pod("next", [SMALL])
    assert eventually(lambda: finished(node, following))
    assert [one.gpu_instance for one in devices(node)] == [13]
