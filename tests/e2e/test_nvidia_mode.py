"""Mode nvidia, the agent as a process: kubelet alone, no scheduler, no API server."""

import json
from pathlib import Path

import pytest

from agent.sim.driver import SimGpu, SimMig, made_up_uuid
from agent.sim.kubelet import ContainerSpec
from tests.cdi_schema import check_cdi
from tests.e2e.lone_nodes import FIRST, GPU, SECOND, SHARED, SHARING, LoneMaker, given, up
from tests.toy_plugin import ToyPlugin, register
from tests.waiting import eventually

VISIBLE = "NVIDIA_VISIBLE_DEVICES"
ROOT = "/var/run/nvidia-container-devices"


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


def test_mig_devices_are_offered_to_who_may_not_see_all_of_a_gpu(lone: LoneMaker) -> None:
    """As in a container without mig/monitor, in which NVML tells no memory of the whole."""
    node = lone("--mig-strategy", "mixed", gpus={0: mig_gpu(0, 4864)})
    up(node, {"nvidia.com/mig-1g.5gb": 1})
    node.driver.fail("nvmlDeviceGetMemoryInfo", 4, 0)
    node.driver.change_gpu(0, mig_gpu(0, 4864, 4864))
    up(node, {"nvidia.com/mig-1g.5gb": 2})
    assert given(node, "a", {"nvidia.com/mig-1g.5gb": 1}).env[VISIBLE].startswith("MIG-0")


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


def test_doctor_asks_only_what_this_mode_has(lone: LoneMaker) -> None:
    node = lone(config=SHARING)
    up(node, {SHARED: 8})
    given(node, "a", {SHARED: 1})
    expected = {
        "registered": f"kubelet counts 8 of {SHARED}",
        "list-size": f"8 of {SHARED} is offered",
        "kubelet-books": "kubelet_internal_checkpoint has",
        "register": "needs `credentials`, which is skipped",
        **dict.fromkeys(("hook-installed", "mig"), "not applicable: mode nvidia"),
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
