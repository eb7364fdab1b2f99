"""What a pod that HAMi's scheduler has placed gets from kubelet, and what it is told otherwise."""

import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from cluster.agent_process import AgentProcess, HostFiles
from cluster.conftest import StartAgent
from cluster.gpu_pods import Container, GpuPod, GpuPods, NodeView
from cluster.node_under_test import ContainerView, NodeUnderTest
from cluster.pod_resources import assigned_ids
from waiting import eventually

from agent.sim.driver import SimGpu
from agent.sim.scheduler import BIND_PHASE, TO_ALLOCATE, PlacedClaim

pytestmark = pytest.mark.timeout(600)

Gpus = tuple[SimGpu, SimGpu]
CACHE = re.compile(r"/usr/local/vgpu/[0-9a-f-]{36}\.cache")


def limits(view: ContainerView) -> dict[str, str]:
    """What the container is limited to, without the name of its cache file, which is random."""
    env = dict(view.env)
    cache = env.pop("CUDA_DEVICE_MEMORY_SHARED_CACHE", "")
    assert bool(CACHE.fullmatch(cache)) == bool(env), (cache, env)
    return env


def expected_limits(*claims: PlacedClaim) -> dict[str, str]:
    """HAMi 2.10, the device plugin's Allocate: the variables of a container with these claims."""
    if not claims:
        return {}
    memory = {f"CUDA_DEVICE_MEMORY_LIMIT_{i}": f"{c.memory_mib}m" for i, c in enumerate(claims)}
    return {
        "NVIDIA_VISIBLE_DEVICES": ",".join(claim.uuid for claim in claims),
        "CUDA_DEVICE_SM_LIMIT": str(claims[0].core_percent),
        **memory,
    }


def expected_mounts(files: HostFiles, pod: GpuPod, name: str) -> tuple[tuple[str, str, bool], ...]:
    """The mounts of the same function."""
    (library,) = files.vgpu.glob("libvgpu.so.*")  # the agent has put it there
    cache = files.vgpu / "containers" / f"{pod.uid}_{name}"
    return (
        ("/usr/local/vgpu/libvgpu.so", str(library), True),
        ("/usr/local/vgpu", str(cache), False),
        ("/tmp/vgpulock", str(files.locks), False),
        ("/etc/ld.so.preload", str(files.vgpu / "ld.so.preload"), True),
        ("/etc/vgpu.limits", str(files.vgpu / "limits" / cache.name), True),
    )


def assert_bind_is_over(pods: GpuPods, view: NodeView, pod: GpuPod, phase: str) -> None:
    """The scheduler can go on: the phase is written, no claim is left, the node is free."""
    eventually(lambda: pods.annotations(pod).get(BIND_PHASE) == phase, what=f"phase {phase}")
    view.wait_for_lock(held=False)
    if phase == "success":
        assert "NVIDIA" not in pods.annotations(pod)[TO_ALLOCATE]


def test_a_container_gets_exactly_its_grant(
    node: NodeUnderTest,
    view: NodeView,
    pods: GpuPods,
    agent: AgentProcess,
    files: HostFiles,
    gpus: Gpus,
) -> None:
    claim = PlacedClaim(gpus[1].uuid, 3000, 30)
    pod = pods.start(Container(name="main", claims=[claim]))
    pods.wait_for_phase(pod, "Running")
    (started,) = node.containers(pod.uid, "main")
    assert limits(started) == expected_limits(claim)
    assert started.mounts == expected_mounts(files, pod, "main")
    assert started.devices == ()
    assert_bind_is_over(pods, view, pod, "success")
    assert (files.vgpu / "containers" / f"{pod.uid}_main").is_dir()


def test_what_the_agent_reports_is_enough_for_the_scheduler_to_place_a_pod(
    node: NodeUnderTest,
    view: NodeView,
    pods: GpuPods,
    agent: AgentProcess,
    gpus: Gpus,
) -> None:
    assert pods.scheduler.handshake_once(node.name) == "refreshed", pods.scheduler.complaints
    half = PlacedClaim("", 24_001, 50)  # two of them do not fit on one GPU
    placed = [pods.create(Container(name="main", claims=[half])) for _ in range(2)]
    for pod in placed:
        pods.place_by_request(pod)
        pods.wait_for_phase(pod, "Running")
        assert_bind_is_over(pods, view, pod, "success")
    given = [dict(node.containers(pod.uid, "main")[0].env) for pod in placed]
    assert {env["NVIDIA_VISIBLE_DEVICES"] for env in given} == {gpu.uuid for gpu in gpus}
    assert {env["CUDA_DEVICE_MEMORY_LIMIT_0"] for env in given} == {"24001m"}


def test_kubelets_books_name_the_gpu_that_the_scheduler_chose(
    node: NodeUnderTest, pods: GpuPods, agent: AgentProcess, gpus: Gpus
) -> None:
    claims = [PlacedClaim(gpus[1].uuid, 100, 1), PlacedClaim(gpus[0].uuid, 100, 1)]
    pod = pods.start(Container(name="main", claims=claims))
    pods.wait_for_phase(pod, "Running")
    owners = [device_id.rpartition("-")[0] for device_id in assigned_ids(node, pod, "main")]
    assert sorted(owners) == sorted(claim.uuid for claim in claims)


@pytest.mark.parametrize("release", ["2.9", "2.10"])
def test_each_container_of_a_pod_gets_its_own(
    node: NodeUnderTest,
    view: NodeView,
    agent: AgentProcess,
    files: HostFiles,
    gpus: Gpus,
    request: pytest.FixtureRequest,
    release: str,
) -> None:
    pods = GpuPods(node, release=release)
    request.addfinalizer(pods.delete_all)
    one, two = gpus[0].uuid, gpus[1].uuid
    init = [
        Container(name="prepare", command=["true"]),
        Container(name="warm-up", claims=[PlacedClaim(one, 1000, 10)], command=["true"]),
    ]
    containers = [
        Container(name="first", claims=[PlacedClaim(one, 2000, 20)]),
        Container(name="plain"),
        Container(name="both", claims=[PlacedClaim(two, 3000, 30), PlacedClaim(one, 500, 5)]),
    ]
    pod = pods.start(*containers, init=init)
    pods.wait_for_phase(pod, "Running")
    for container in (*init, *containers):
        (started,) = node.containers(pod.uid, container.name)
        assert limits(started) == expected_limits(*container.claims), container.name
        mounts = expected_mounts(files, pod, container.name) if container.claims else ()
        assert started.mounts == mounts, container.name
    assert_bind_is_over(pods, view, pod, "success")


def test_a_pod_with_gpus_in_its_init_container_only_is_served_without_a_lock(
    node: NodeUnderTest, view: NodeView, pods: GpuPods, agent: AgentProcess, gpus: Gpus
) -> None:
    claim = PlacedClaim(gpus[0].uuid, 700, 7)
    init = [Container(name="warm-up", claims=[claim], command=["true"])]
    pod = pods.start(Container(name="plain"), init=init)
    pods.wait_for_phase(pod, "Running")
    assert limits(node.containers(pod.uid, "warm-up")[0]) == expected_limits(claim)
    assert_bind_is_over(pods, view, pod, "success")


def test_pods_one_after_the_other_get_each_their_own(
    node: NodeUnderTest, view: NodeView, pods: GpuPods, agent: AgentProcess, gpus: Gpus
) -> None:
    given = {}
    for number in range(1, 6):
        claim = PlacedClaim(gpus[number % 2].uuid, 100 * number, number)
        given[pods.start(Container(name="main", claims=[claim]))] = claim
    for pod, claim in given.items():
        pods.wait_for_phase(pod, "Running")
        (started,) = node.containers(pod.uid, "main")
        assert limits(started) == expected_limits(claim)
        assert_bind_is_over(pods, view, pod, "success")


def test_a_container_that_is_started_again_keeps_its_grant_without_the_agent(
    node: NodeUnderTest, pods: GpuPods, agent: AgentProcess, gpus: Gpus
) -> None:
    claim = PlacedClaim(gpus[0].uuid, 100, 10)
    pod = pods.start(Container(name="main", claims=[claim], command=["sleep", "2"]))
    pods.wait_for_phase(pod, "Running")
    agent.kill()
    before = len(node.containers(pod.uid, "main"))
    eventually(lambda: len(node.containers(pod.uid, "main")) > before, within_s=60)
    first, *_, last = node.containers(pod.uid, "main")
    assert limits(first) == expected_limits(claim)
    assert last.gives_the_same_as(first)


@pytest.mark.parametrize(
    ("flags", "env", "mounts"),
    [
        pytest.param(
            ["--device-list-strategy=volume-mounts"],
            {"NVIDIA_VISIBLE_DEVICES": "/var/run/nvidia-container-devices"},
            [("/var/run/nvidia-container-devices/{uuid}", "/dev/null")],
            id="by mounts",
        ),
        pytest.param(
            ["--device-id-strategy=index"], {"NVIDIA_VISIBLE_DEVICES": "1"}, [], id="by index"
        ),
        pytest.param(
            ["--device-memory-scaling=2"], {"CUDA_OVERSUBSCRIBE": "true"}, [], id="oversubscribed"
        ),
        pytest.param(
            ["--disable-core-limit"], {"GPU_CORE_UTILIZATION_POLICY": "disable"}, [], id="no cores"
        ),
    ],
)
def test_settings_change_what_a_container_gets(
    node: NodeUnderTest,
    view: NodeView,
    pods: GpuPods,
    start_agent: StartAgent,
    gpus: Gpus,
    flags: Sequence[str],
    env: dict[str, str],
    mounts: Sequence[tuple[str, str]],
) -> None:
    start_agent(*flags)
    view.wait_for_allocatable(20)
    pod = pods.start(Container(name="main", claims=[PlacedClaim(gpus[1].uuid, 100, 10)]))
    pods.wait_for_phase(pod, "Running")
    (started,) = node.containers(pod.uid, "main")
    assert env.items() <= dict(started.env).items()
    for container_path, host_path in mounts:
        wanted = (container_path.format(uuid=gpus[1].uuid), host_path)
        assert wanted in [mount[:2] for mount in started.mounts]


def test_device_nodes_are_named_when_they_are_asked_for(
    node: NodeUnderTest,
    view: NodeView,
    pods: GpuPods,
    start_agent: StartAgent,
    gpus: Gpus,
    tmp_path: Path,
) -> None:
    devices = tmp_path / "root" / "dev"
    devices.mkdir(parents=True)
    for name in ("nvidiactl", "nvidia-uvm", "nvidia0", "nvidia1"):
        (devices / name).touch()
    start_agent("--pass-device-specs", f"--dev-root={tmp_path / 'root'}")
    view.wait_for_allocatable(20)
    pod = pods.start(Container(name="main", claims=[PlacedClaim(gpus[1].uuid, 100, 10)]))
    pods.wait_for_phase(pod, "Running")
    (started,) = node.containers(pod.uid, "main")
    assert sorted(started.devices) == [
        (f"/dev/{name}", str(devices / name), "rw")
        for name in ("nvidia-uvm", "nvidia1", "nvidiactl")
    ]


# --- refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "claims_text", "said"),
    [
        pytest.param(2, "", "asks for 2 vGPU(s)", id="the pod changed after it was placed"),
        pytest.param(1, "{uuid},NVIDIA,many,10:;", "many", id="a claim that cannot be read"),
        pytest.param(1, "GPU-none,NVIDIA,100,10:;", "GPU-none", id="a GPU that is not here"),
    ],
)
def test_a_refusal_tells_the_owner_why_and_frees_the_node(
    view: NodeView,
    pods: GpuPods,
    agent: AgentProcess,
    gpus: Gpus,
    asked: int,
    claims_text: str,
    said: str,
) -> None:
    container = Container(name="main", claims=[PlacedClaim(gpus[0].uuid, 100, 10)], asked=asked)
    pod = pods.create(container)
    pods.place_unbound(pod, container)
    if claims_text:
        pods.annotate(pod, {TO_ALLOCATE: claims_text.format(uuid=gpus[0].uuid)})
    pods.bind(pod)

    status = pods.wait_for_phase(pod, "Failed")
    assert status["reason"] == "UnexpectedAdmissionError"
    assert said in status["message"]
    assert_bind_is_over(pods, view, pod, "failed")

    after = pods.start(Container(name="main", claims=[PlacedClaim(gpus[0].uuid, 100, 10)]))
    pods.wait_for_phase(after, "Running")


def test_a_pod_that_no_scheduler_of_ours_has_placed_is_told_which_one_it_needs(
    pods: GpuPods, agent: AgentProcess
) -> None:
    pod = pods.create(Container(name="main", asked=1))
    pods.bind(pod)
    status = pods.wait_for_phase(pod, "Failed")
    assert status["reason"] == "UnexpectedAdmissionError"
    assert "scheduler" in status["message"]
