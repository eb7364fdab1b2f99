"""Mode nvidia, the agent as a process: kubelet alone, no scheduler, no API server."""

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from agent.sim.driver import SimGpu, SimMig, made_up_uuid
from agent.sim.kubelet import ContainerGrant, ContainerSpec
from agent.sim.lone_node import LoneNode
from tests import mps_program
from tests.cdi_schema import check_cdi
from tests.e2e.conftest import COMMAND
from tests.installed_here import without_installed_agent
from tests.toy_plugin import ToyPlugin, register
from tests.waiting import eventually

GPU, SHARED = "nvidia.com/gpu", "nvidia.com/gpu.shared"
VISIBLE = "NVIDIA_VISIBLE_DEVICES"
ROOT = "/var/run/nvidia-container-devices"
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


@pytest.fixture
def lone() -> Iterator[LoneMaker]:
    """Make nodes; everything they started is ended after the test."""
    nodes: list[LoneNode] = []

    def make(
        *flags: str,
        gpus: Mapping[int, SimGpu] | None = None,
        config: str = "",
        programs: Path | None = None,
        behaviour: str = "1.36",
        linked: tuple[int, int] | None = None,
        started: bool = True,
    ) -> LoneNode:
        root = Path(tempfile.mkdtemp(prefix="vgpu-e2e-"))
        if config:
            (root / "config.yaml").write_text(config)
            flags = (*flags, "--config-file", str(root / "config.yaml"))
        node = LoneNode(
            root,
            COMMAND,
            behaviour=behaviour,
            flags=("--probe-interval", "0.5s", "--mode", "nvidia", *flags),
            environ={"PATH": f"{programs}:{os.environ['PATH']}"} if programs else None,
        )
        nodes.append(node.start())
        for number, gpu in (gpus or {0: SimGpu(uuid=FIRST), 1: SimGpu(uuid=SECOND)}).items():
            node.driver.add_gpu(number, gpu)
        if linked:
            node.driver.nvlink(*linked, links=12)
        if started:
            node.start_agent()
        return node

    yield make
    for node in nodes:
        sys.stderr.write(node.log_text())
        node.stop()
        shutil.rmtree(node.root, ignore_errors=True)


def up(node: LoneNode, wanted: Mapping[str, int]) -> None:
    eventually(
        lambda: dict(node.kubelet.node_status().allocatable) == wanted, within_s=60, what="devices"
    )
    eventually(node.ready, within_s=60, what="/readyz")


def given(node: LoneNode, name: str, resources: Mapping[str, int]) -> ContainerGrant:
    pod = node.run_static(name, ContainerSpec("main", resources))
    assert pod.admitted.ok, pod.admitted.message
    return pod.admitted.containers["main"]


def driver_tree(root: Path) -> Path:
    """A driver's files as a distribution puts them."""
    folder = root / "driver-root/usr/lib/x86_64-linux-gnu"
    folder.mkdir(parents=True)
    for name in ("libcuda", "libnvidia-ml"):
        (folder / f"{name}.so.570.86.15").write_bytes(b"")
        (folder / f"{name}.so.1").symlink_to(f"{name}.so.570.86.15")
    (root / "driver-root/dev").mkdir()
    for name in ("nvidiactl", "nvidia-uvm", "nvidia0", "nvidia1"):
        (root / "driver-root/dev" / name).write_bytes(b"")
    return root / "driver-root"


@pytest.mark.parametrize("behaviour", ["1.20", "1.36"])
def test_whole_gpus(lone: LoneMaker, behaviour: str) -> None:
    node = lone(behaviour=behaviour)
    up(node, {GPU: 2})
    first, second = given(node, "a", {GPU: 1}), given(node, "b", {GPU: 1})
    assert {first.env[VISIBLE], second.env[VISIBLE]} == {FIRST, SECOND}
    assert node.kubelet.resources[GPU].healthy == {FIRST, SECOND}, "ids are uuids"
    assert set(first.env) == {VISIBLE}
    assert (first.mounts, first.devices, first.cdi_devices) == ((), (), ())
    refused = node.run_static("c", ContainerSpec("main", {GPU: 1}))
    assert not refused.admitted.ok


def test_kubelet_is_told_the_numa_nodes(lone: LoneMaker) -> None:
    node = lone(gpus={0: SimGpu(uuid=FIRST, numa_node=1), 1: SimGpu(uuid=SECOND, numa_node=None)})
    up(node, {GPU: 2})
    given(node, "a", {GPU: 2})
    books = json.loads((node.kubelet.socket.parent / "kubelet_internal_checkpoint").read_text())
    (entry,) = books["Data"]["PodDeviceEntries"]
    assert entry["DeviceIDs"] == {"1": [FIRST], "-1": [SECOND]}


def test_nothing_is_ready_before_the_gpus_are_known(lone: LoneMaker) -> None:
    node = lone(started=False)
    node.driver.hang()
    node.start_agent()
    eventually(lambda: node.fetch("/readyz")[0], within_s=60, what="an answer")
    status, body = node.fetch("/readyz")
    assert status == 503, body
    node.driver.hang(False)
    up(node, {GPU: 2})


def test_mounts_nodes_and_indices(lone: LoneMaker) -> None:
    node = lone("--device-list-strategy", "volume-mounts", "--device-id-strategy", "index",
                "--pass-device-specs", "--gds-enabled")  # fmt: skip
    up(node, {GPU: 2})
    grant = given(node, "a", {GPU: 2})
    assert grant.env == {VISIBLE: ROOT, "NVIDIA_GDS": "enabled"}
    assert [mount.container_path for mount in grant.mounts] == [f"{ROOT}/0", f"{ROOT}/1"]
    assert {mount.host_path for mount in grant.mounts} == {"/dev/null"}
    assert [device.container_path for device in grant.devices][-2:] == [
        "/dev/nvidia0",
        "/dev/nvidia1",
    ]


def test_nvidias_file_makes_replicas(lone: LoneMaker) -> None:
    node = lone(config=SHARING)
    up(node, {SHARED: 8})
    assert f"{FIRST}::0" in node.kubelet.resources[SHARED].healthy
    seen = [given(node, f"pod-{n}", {SHARED: 1}).env[VISIBLE] for n in range(4)]
    assert sorted(seen) == sorted([FIRST, FIRST, SECOND, SECOND]), "spread over the GPUs"
    refused = node.run_static("greedy", ContainerSpec("main", {SHARED: 2}))
    assert not refused.admitted.ok
    assert "Ask for nvidia.com/gpu.shared: 1" in refused.admitted.message


def test_an_ill_gpu_takes_all_its_replicas_with_it(lone: LoneMaker) -> None:
    node = lone(config=SHARING)
    up(node, {SHARED: 8})
    node.driver.xid(0, 79)
    eventually(
        lambda: len(node.kubelet.resources[SHARED].unhealthy) == 4,
        within_s=60,
        what="4 of 8 unhealthy",
    )


@pytest.mark.parametrize("strategy", ["cdi-annotations", "cdi-cri"])
def test_cdi(lone: LoneMaker, tmp_path: Path, strategy: str) -> None:
    root, specs = driver_tree(tmp_path), tmp_path / "cdi"
    node = lone("--device-list-strategy", strategy, "--nvidia-driver-root", str(root),
                "--cdi-spec-dir", str(specs))  # fmt: skip
    up(node, {GPU: 2})
    grant = given(node, "a", {GPU: 2})
    names = {f"k8s.device-plugin.nvidia.com/gpu={uuid}" for uuid in (FIRST, SECOND)}
    if strategy == "cdi-cri":
        assert set(grant.cdi_devices) == names
        assert not grant.annotations
    else:
        ((key, value),) = grant.annotations.items()
        assert key.startswith("cdi.k8s.io/nvidia-device-plugin_")
        assert set(value.split(",")) == names
    assert (dict(grant.env), grant.mounts, grant.devices) == ({}, (), ())
    document = check_cdi((specs / "k8s.device-plugin.nvidia.com-gpu.json").read_text())
    devices = {device["name"]: device["containerEdits"] for device in document["devices"]}
    assert set(devices) == {FIRST, SECOND, "all"}
    nodes = [one["path"] for one in devices[FIRST]["deviceNodes"]]
    assert nodes == ["/dev/nvidia0", "/dev/nvidiactl", "/dev/nvidia-uvm"]
    assert devices[FIRST]["deviceNodes"][0]["hostPath"] == f"{root}/dev/nvidia0"
    mounted = {mount["containerPath"] for mount in devices[FIRST]["mounts"]}
    assert "/usr/lib/x86_64-linux-gnu/libcuda.so.1" in mounted


CHANNEL = "dev/nvidia-caps-imex-channels/channel0"
CDI = "k8s.device-plugin.nvidia.com"


@pytest.mark.parametrize(
    ("strategy", "env", "mounts"),
    [
        pytest.param("envvar,cdi-cri", {VISIBLE: FIRST, "NVIDIA_IMEX_CHANNELS": "0"}, [], id="envvar and CDI"),
        pytest.param("volume-mounts", {VISIBLE: ROOT}, [f"{ROOT}/{FIRST}", f"{ROOT}/imex/0"], id="volume-mounts"),
    ],
)  # fmt: skip
def test_imex_and_what_else_the_runtime_can_give(
    lone: LoneMaker, tmp_path: Path, strategy: str, env: dict[str, str], mounts: list[str]
) -> None:
    root, specs = driver_tree(tmp_path), tmp_path / "cdi"
    for name in ("gdrdrv", "nvidia-fs0", "infiniband/rdma_cm"):
        (root / "dev" / name).parent.mkdir(exist_ok=True)
        (root / "dev" / name).write_bytes(b"")
    node = lone("--device-list-strategy", strategy, "--nvidia-driver-root", str(root),
                "--cdi-spec-dir", str(specs), "--imex-channel-ids", "0", "--imex-required",
                "--gdrcopy-enabled", "--gds-enabled", "--mofed-enabled", "--pass-device-specs",
                gpus={0: SimGpu(uuid=FIRST)})  # fmt: skip
    eventually(lambda: GPU in node.kubelet.resources, within_s=60, what="registered")
    refused = node.run_static("a", ContainerSpec("main", {GPU: 1}))
    assert "--imex-required=false" in refused.admitted.message
    (root / CHANNEL).parent.mkdir()
    (root / CHANNEL).write_bytes(b"")
    if "cdi" in strategy:
        eventually((specs / f"{CDI}-imex-channel.json").exists, within_s=90, what="its file")
    up(node, {GPU: 1})
    grant = given(node, "b", {GPU: 1})
    extras = {"NVIDIA_GDRCOPY", "NVIDIA_GDS", "NVIDIA_MOFED"}
    assert grant.env == env | dict.fromkeys(extras, "enabled")
    assert [mount.container_path for mount in grant.mounts] == mounts
    assert f"/{CHANNEL}" in [device.container_path for device in grant.devices]
    assert set(grant.cdi_devices) == (
        {f"{CDI}/gpu={FIRST}", f"{CDI}/imex-channel=0"}
        | {f"{CDI}/{name}=all" for name in ("gdrcopy", "gds", "mofed")}
        if "cdi" in strategy
        else set()
    )
    for name in {one.split("=")[0] for one in grant.cdi_devices}:
        check_cdi((specs / f"{name.replace('/', '-')}.json").read_text())


def test_without_a_driver_below_the_root_cdi_gives_nothing(lone: LoneMaker, tmp_path: Path) -> None:
    node = lone("--device-list-strategy", "cdi-cri", "--nvidia-driver-root", str(tmp_path),
                "--cdi-spec-dir", str(tmp_path / "cdi"))  # fmt: skip
    eventually(lambda: GPU in node.kubelet.resources, within_s=60, what="registered")
    assert "libcuda.so" in node.fetch("/readyz")[1]
    refused = node.run_static("a", ContainerSpec("main", {GPU: 1}))
    assert "--nvidia-driver-root" in refused.admitted.message


def mig_gpu(number: int, *memory_mib: int) -> SimGpu:
    migs = tuple(
        SimMig(position=place, uuid=f"MIG-{number}{place}", gpu_instance=place + 1, memory_mib=size)
        for place, size in enumerate(memory_mib)
    )
    return SimGpu(
        uuid=made_up_uuid(number),
        name="NVIDIA A100-SXM4-40GB",
        memory_mib=40960,
        mig=True,
        migs=migs,
    )


def test_mig_mixed(lone: LoneMaker) -> None:
    node = lone("--mig-strategy", "mixed", gpus={0: mig_gpu(0, 4864, 4864), 1: SimGpu(uuid=SECOND)})
    up(node, {GPU: 1, "nvidia.com/mig-1g.5gb": 2})
    assert given(node, "a", {"nvidia.com/mig-1g.5gb": 1}).env[VISIBLE].startswith("MIG-0")
    assert given(node, "b", {GPU: 1}).env[VISIBLE] == SECOND


def test_a_new_mig_profile_is_a_new_resource(lone: LoneMaker) -> None:
    node = lone("--mig-strategy", "mixed", gpus={0: mig_gpu(0, 4864)})
    up(node, {"nvidia.com/mig-1g.5gb": 1})
    node.driver.change_gpu(0, mig_gpu(0, 4864, 9856))
    up(node, {"nvidia.com/mig-1g.5gb": 1, "nvidia.com/mig-1g.10gb": 1})
    node.driver.change_gpu(0, mig_gpu(0, 4864))
    up(node, {"nvidia.com/mig-1g.5gb": 1, "nvidia.com/mig-1g.10gb": 0})


def test_mig_single(lone: LoneMaker) -> None:
    node = lone("--mig-strategy", "single", gpus={0: mig_gpu(0, 4864, 4864)})
    up(node, {GPU: 2})
    assert given(node, "a", {GPU: 1}).env[VISIBLE].startswith("MIG-0")


def test_mig_single_with_a_whole_gpu_is_refused(lone: LoneMaker) -> None:
    node = lone("--mig-strategy", "single", gpus={0: mig_gpu(0, 4864), 1: SimGpu(uuid=SECOND)})
    assert node.agent is not None
    assert node.agent.wait(30) == 2
    assert "needs all GPUs in MIG mode or none" in node.log_text()


MPS = """
version: v1
sharing: {mps: {resources: [{name: nvidia.com/gpu, replicas: 4}]}}
"""


@pytest.fixture
def mps_bed() -> Iterator[tuple[Path, Path]]:
    with mps_program.place() as place:
        yield place


def told_of(root: Path) -> list[str]:
    return (root / GPU / "log/told").read_text().splitlines()


def test_mps(lone: LoneMaker, mps_bed: tuple[Path, Path]) -> None:
    programs, root = mps_bed
    node = lone("--mps-root", str(root), config=MPS, programs=programs)
    up(node, {GPU: 8})
    assert told_of(root) == [
        f"started {FIRST},{SECOND}",
        "set_default_device_pinned_mem_limit 0 11517M",
        "set_default_device_pinned_mem_limit 1 11517M",
        "set_default_active_thread_percentage 25",
    ]
    grant = given(node, "a", {GPU: 1})
    assert grant.env["CUDA_MPS_PIPE_DIRECTORY"] == "/mps/nvidia.com/gpu/pipe"
    assert [(m.container_path, m.host_path) for m in grant.mounts] == [
        ("/mps/nvidia.com/gpu/pipe", f"{root}/nvidia.com/gpu/pipe"),
        ("/dev/shm", f"{root}/shm"),
    ]
    refused = node.run_static("two", ContainerSpec("main", {GPU: 2}))
    assert "failRequestsGreaterThanOne" in refused.admitted.message
    (root / GPU / "pipe/control").unlink()  # it dies
    eventually((root / GPU / "pipe/control").exists, within_s=60, what="a new daemon")
    eventually(lambda: len(told_of(root)) == 8, within_s=60, what="its limits")
    assert (root / GPU / "gpus").read_text().split() == [FIRST, SECOND]
    node.stop_agent()
    assert (root / GPU / "pipe/control").exists(), "clients run on"
    (node.root / "config.yaml").write_text(SHARING)  # shared in another way from now on
    node.start_agent()
    eventually(lambda: not (root / GPU / "pipe/control").exists(), within_s=60, what="its end")
    eventually(lambda: not (root / GPU / "gpus").exists(), within_s=60, what="everybody's GPUs")
    up(node, {GPU: 0, SHARED: 8})
    assert not (root / SHARED).exists(), "nobody shares by MPS any more"
    assert "CUDA_MPS_PIPE_DIRECTORY" not in given(node, "b", {SHARED: 1}).env


@without_installed_agent
def test_uninstall_ends_the_daemons(lone: LoneMaker, mps_bed: tuple[Path, Path]) -> None:
    programs, root = mps_bed
    node = lone("--mps-root", str(root), config=MPS, programs=programs)
    up(node, {GPU: 8})
    node.stop_agent()
    would = node.run_command("uninstall", "--dry-run")
    assert f"would end the MPS daemon of {GPU}" in would.stdout, would.stderr
    assert (root / GPU / "pipe/control").exists()
    done = node.run_command("uninstall")
    assert done.returncode == 0, done.stderr
    assert f"ended the MPS daemon of {GPU}, and opened {FIRST}, {SECOND}" in done.stdout
    assert not (root / GPU / "pipe/control").exists()
    assert node.run_command("uninstall").stdout.count("MPS") == 0


def test_mps_without_its_program_is_refused_in_words(lone: LoneMaker, tmp_path: Path) -> None:
    node = lone("--mps-root", str(tmp_path / "mps"), config=MPS)
    eventually(lambda: "sharing.mps needs" in node.fetch("/readyz")[1], within_s=60, what="why")
    eventually(lambda: GPU in node.kubelet.resources, within_s=60, what="registered")
    refused = node.run_static("a", ContainerSpec("main", {GPU: 1}))
    assert "nvidia-cuda-mps-control, which is not in the agent's PATH" in refused.admitted.message


def test_doctor_asks_only_what_this_mode_has(lone: LoneMaker) -> None:
    node = lone(config=SHARING)
    up(node, {SHARED: 8})
    given(node, "a", {SHARED: 1})
    expected = {
        "registered": f"kubelet counts 8 of {SHARED}",
        "list-size": f"8 of {SHARED} is offered",
        "kubelet-books": "kubelet_internal_checkpoint has",
        **dict.fromkeys(("hook-installed", "register", "mig"), "not applicable: mode nvidia"),
    }

    def differing() -> dict[str, str]:
        done = node.run_command("doctor", "--json")
        found = {check["name"]: check["evidence"] for check in json.loads(done.stdout)["checks"]}
        return {n: found[n] for n, words in expected.items() if not found[n].startswith(words)}

    last = differing()
    for _ in range(3):  # doctor gives no check long, and this machine may be busy
        last = last and differing()
    assert last == {}


def test_use_is_told_by_pod(lone: LoneMaker) -> None:
    node = lone()
    up(node, {GPU: 2})
    given(node, "a", {GPU: 1})

    def told() -> list[dict[str, object]]:
        status, body = node.fetch("/v1/use")
        return list(json.loads(body).get("containers", ())) if status == 200 else []

    eventually(lambda: [one["pod"] for one in told()] == ["a"], within_s=60, what="its pod")
    (container,) = told()
    assert (container["namespace"], container["container"]) == ("team", "main")
    assert "limits not enforced" not in node.log_text()
    before = node.kubelet.resources[GPU].in_use
    node.stop_agent()
    node.start_agent()
    eventually(lambda: [one["pod"] for one in told()] == ["a"], within_s=60, what="after a restart")
    assert node.kubelet.resources[GPU].in_use == before


def test_gpus_that_are_joined_are_given_together(lone: LoneMaker) -> None:
    cards = {number: SimGpu(uuid=made_up_uuid(number)) for number in range(4)}
    node = lone(gpus=cards, linked=(1, 3))
    up(node, {GPU: 4})
    grant = given(node, "a", {GPU: 2})
    assert set(grant.env[VISIBLE].split(",")) == {made_up_uuid(1), made_up_uuid(3)}
    rest = given(node, "b", {GPU: 2})
    assert set(rest.env[VISIBLE].split(",")) == {made_up_uuid(0), made_up_uuid(2)}


def test_pods_of_the_plugin_before_keep_their_devices(lone: LoneMaker) -> None:
    node = lone("--owners-interval", "200ms", started=False)
    theirs = ToyPlugin(node.kubelet.socket.parent / "nvidia-gpu.sock", [FIRST, SECOND])
    register(node.kubelet, theirs)
    eventually(
        lambda: GPU in node.kubelet.resources and len(node.kubelet.resources[GPU].healthy) == 2,
        within_s=60,
        what="theirs",
    )
    before = node.run_static("old", ContainerSpec("main", {GPU: 1}))
    assert before.admitted.ok
    (held,) = before.admitted.containers["main"].device_ids[GPU]
    theirs.stop()
    node.start_agent()
    up(node, {GPU: 2})
    assert node.kubelet.resources[GPU].in_use == {held}
    assert given(node, "new", {GPU: 1}).env[VISIBLE] == ({FIRST, SECOND} - {held}).pop()
    node.end_static(before)
    assert given(node, "next", {GPU: 1}).env[VISIBLE] == held
    assert "two owners" not in node.log_text()
