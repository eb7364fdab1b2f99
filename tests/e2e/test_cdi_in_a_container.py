"""A real container of what the agent has answered by CDI: podman reads the file that it wrote.

podman has the CDI project's own library, as containerd and CRI-O. The driver's files are made up,
its device nodes are the null device.
"""

import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.sim.driver import SimGpu, made_up_uuid
from agent.sim.kubelet import ContainerSpec
from agent.sim.lone_node import LoneNode
from tests.e2e.conftest import COMMAND
from tests.peers.container_tools import PeersUnavailable, container_tools
from tests.peers.image_tools import podman
from tests.peers.runc import unusable
from tests.waiting import eventually

pytestmark = [pytest.mark.timeout(600), pytest.mark.xdist_group("runc")]  # packages are fetched

GPU = "nvidia.com/gpu"
LIB = "usr/lib64"
VERSION = "570.86.15"
NULL = os.makedev(1, 3)


@pytest.fixture
def scratch() -> Iterator[Path]:
    """A short path: unix sockets live in it."""
    path = Path(tempfile.mkdtemp(prefix="vgpu-cdi-"))
    yield path
    shutil.rmtree(path)


def driver_root(root: Path) -> Path:
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"):
        node = root / "dev" / name
        node.parent.mkdir(parents=True, exist_ok=True)
        os.mknod(node, stat.S_IFCHR | 0o666, NULL)
    channel = root / "dev/nvidia-caps-imex-channels/channel0"
    channel.parent.mkdir()
    os.mknod(channel, stat.S_IFCHR | 0o666, NULL)
    (root / LIB).mkdir(parents=True)
    (root / LIB / f"libcuda.so.{VERSION}").write_text("the driver\n")
    (root / LIB / "libcuda.so.1").symlink_to(f"libcuda.so.{VERSION}")
    (root / "usr/bin").mkdir()
    (root / "usr/bin/nvidia-smi").write_text("")
    return root


def test_podman_makes_what_the_agent_says(scratch: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("device nodes are made by root alone")
    (state := scratch / "podman").mkdir()
    try:
        tool, busybox = podman(state), container_tools().busybox
    except PeersUnavailable as error:
        pytest.skip(f"no podman: {error}")
    if why := unusable(container_tools(), scratch):
        pytest.skip(f"runc cannot run containers here: {why}")
    host, specs, rootfs = driver_root(scratch / "host"), scratch / "cdi", scratch / "rootfs"
    (rootfs / "bin").mkdir(parents=True)
    shutil.copy(busybox, rootfs / "bin/busybox")
    (scratch / "node").mkdir()
    flags = ("--mode", "nvidia", "--device-list-strategy", "cdi-cri", "--imex-channel-ids", "0",
             "--nvidia-driver-root", str(host), "--cdi-spec-dir", str(specs))  # fmt: skip
    with LoneNode(scratch / "node", COMMAND, flags=flags) as node:
        for number in range(2):
            node.driver.add_gpu(number, SimGpu(uuid=made_up_uuid(number)))
        node.start_agent()
        eventually(
            lambda: node.kubelet.node_status().allocatable.get(GPU) == 2, within_s=60, what="GPUs"
        )
        pod = node.run_static("a", ContainerSpec("main", {GPU: 1}))
        assert pod.admitted.ok, pod.admitted.message
        devices = pod.admitted.containers["main"].cdi_devices
        given = next(n for n in range(2) if made_up_uuid(n) in devices[0])
    script = f"busybox ls /dev /{LIB} /dev/nvidia-caps-imex-channels; busybox cat /{LIB}/libcuda.so.1; busybox env"
    done = tool.run_container(
        rootfs, "/bin/busybox", "sh", "-c", script, cdi=specs, devices=devices
    )
    assert done.returncode == 0, done.stderr
    told = done.stdout.split()
    assert {f"nvidia{given}", "nvidiactl", "nvidia-uvm", "channel0"} <= set(told)
    assert f"nvidia{1 - given}" not in told, "no other GPU"
    assert {"libcuda.so", "libcuda.so.1", f"libcuda.so.{VERSION}"} <= set(told)
    assert "the driver" in done.stdout
    assert "NVIDIA_VISIBLE_DEVICES=void" in told
    unknown = tool.run_container(
        rootfs, "/bin/busybox", "true", cdi=specs, devices=[f"{devices[0]}x"]
    )
    assert unknown.returncode != 0, "what no file says, no runtime gives"
