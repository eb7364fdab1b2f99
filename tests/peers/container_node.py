"""What is a node for a test whose pods really run? etcd, API server, kubelet, containerd and runc.

Containers have namespaces and cgroups of their own, as on any node. They are on this machine's
network: there is no network plugin. What they start from is made here, of Debian's busybox and of
this machine's libc.
"""

import hashlib
import io
import json
import os
import platform
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from pod_cgroups import OWN_PIDS, every_hierarchy_is_ours, hierarchies
from waiting import eventually

from .build_peers import Peers
from .container_tools import container_tools
from .control_plane import ControlPlane
from .image_tools import PAUSE, Containerd, running_containerd
from .kubelet_process import KubeletProcess
from .node import missing as peers_missing
from .node_layouts import NodeLayout
from .runc import place

NODE, IMAGE = "gpu-node-1", "localhost/tenant:1"
READY_S = 60
OURS, FILES = "vgpu-test-", Path("/tmp")  # and the pid, by which a later run knows what is left
# Of containerd, which ends with its namespaces, and with it what it has started and made there.
OWN_PLACES = """
set -e
mount -t tmpfs none /run
mount -t tmpfs none /var/log
exec "$@"
"""
# Kubelet's test for a network; pods that use it are not made here.
NETWORK = {"cniVersion": "0.3.1", "name": "none", "plugins": [{"type": "loopback"}]}


def missing() -> str:
    """Why no such node can run here, as one sentence; empty when it can."""
    if reason := peers_missing():
        return reason
    if not Path("/sys/fs/cgroup/memory/cgroup.procs").exists():
        return "this machine has no cgroups of version 1, and kubelet 1.20 knows no others"
    if not every_hierarchy_is_ours():
        return "this machine lets nobody make cgroups in all of its hierarchies"
    return ""


@dataclass(frozen=True, slots=True)
class ContainerNode:
    """Made by `running_container_node`."""

    state: Path
    plane: ControlPlane
    kubelet: KubeletProcess
    containerd: Containerd

    def execute(self, container: str, *words: str) -> "subprocess.Popen[bytes]":
        """Run another process in a container, as `kubectl exec` does, and talk to it."""
        name = f"exec-{os.urandom(4).hex()}"
        client = [*self.containerd.client(), "tasks", "exec", "--exec-id", name]
        return subprocess.Popen(
            [*client, "--fifo-dir", self.state / "fifos", container, *words],
            env=self.containerd.environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )


@contextmanager
def scratch() -> Iterator[Path]:
    """A directory with a short path."""
    prefix = f"{OURS}{os.getpid()}-"
    with tempfile.TemporaryDirectory(prefix=prefix, dir=FILES) as made:
        yield Path(made)


def clear_after_the_killed() -> None:
    """Cgroups and files of tests that SIGKILL has ended: a later one may have their pid."""
    for top in (*hierarchies(), FILES):
        for left in top.glob(f"{OURS}*"):
            pid = left.name.removeprefix(OURS).split("-")[0]
            if not pid.isdecimal() or Path(f"/proc/{pid}").exists():
                continue
            if top == FILES:
                shutil.rmtree(left, ignore_errors=True)
                continue
            for folder, _, _ in os.walk(left, topdown=False):
                _removed(Path(folder))


@contextmanager
def running_container_node(peers: Peers, rootfs: Path) -> Iterator[ContainerNode]:
    """Start all of them, with an image of `rootfs`; end them, what they run, and their files."""
    with ExitStack() as stack:
        clear_after_the_killed()
        state = stack.enter_context(scratch())
        top = stack.enter_context(_cgroup(f"{OURS}{os.getpid()}"))
        plane = ControlPlane(peers, state=state, node=NODE)
        stack.callback(plane.stop)
        plane.start()
        runtime = state / "containerd"
        (runtime / "networks").mkdir(parents=True)
        (runtime / "networks" / "none.conflist").write_text(json.dumps(NETWORK))
        own = (*OWN_PIDS, "sh", "-c", OWN_PLACES, "containerd")
        containerd = stack.enter_context(running_containerd(runtime, *own))
        _load(containerd, PAUSE, _sleeper(state / "pause"), runtime)
        _load(containerd, IMAGE, rootfs, runtime)
        kubelet = KubeletProcess(
            peers,
            state=state,
            node=NODE,
            kubeconfig=plane.kubeconfig("kubelet"),
            runtime=runtime / "c.sock",
            layout=_layout(state, runtime / "c.sock", top),
        )
        stack.callback(kubelet.stop)
        kubelet.start()
        node = ContainerNode(state, plane, kubelet, containerd)
        eventually(plane.has_ready_node, within_s=READY_S, what="the node is ready")
        yield node


def _layout(state: Path, socket: Path, cgroup: str) -> NodeLayout:
    """Its files where containerd sees them as well, and cgroups for its pods."""
    return NodeLayout(
        name="containers",
        runtime=str(socket),
        static_pods=str(state / "static-pods"),
        kubeconfig="",
        root_dir=str(state / "kubelet"),
        config={"cgroupsPerQOS": True, "cgroupDriver": "cgroupfs", "cgroupRoot": f"/{cgroup}"},
    )


@contextmanager
def _cgroup(name: str) -> Iterator[str]:
    """One in every hierarchy; in the end all below it goes, once nothing runs there."""
    made = [hierarchy / name for hierarchy in hierarchies()]
    for top in made:
        top.mkdir()
    try:
        yield name
    finally:
        for top in made:
            for folder, _, _ in os.walk(top, topdown=False):
                eventually(lambda folder=folder: _removed(Path(folder)), what=f"{folder} is empty")


def _removed(folder: Path) -> bool:
    try:
        folder.rmdir()
    except OSError:
        return False
    return True


def _sleeper(rootfs: Path) -> Path:
    place(rootfs, container_tools().busybox, "/bin/busybox")
    return rootfs


def _load(containerd: Containerd, name: str, rootfs: Path, work: Path) -> None:
    archive = work / "image.tar"
    write_image(archive, name, rootfs, ("/bin/busybox", "sleep", "3600"))
    done = containerd.ctr("images", "import", archive)
    assert done.returncode == 0, done.stderr
    archive.unlink()


def write_image(archive: Path, name: str, rootfs: Path, command: Sequence[str]) -> None:
    """Write what `docker save` writes of an image with one layer.

    Source: Docker image specification v1.2, "Combined Image JSON + Filesystem Changeset Format".
    """
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        tar.add(rootfs, arcname=".")
    digest = hashlib.sha256(layer.getvalue()).hexdigest()
    config = {
        "architecture": {"aarch64": "arm64"}.get(platform.machine(), "amd64"),
        "os": "linux",
        "config": {"Cmd": list(command), "Env": ["PATH=/usr/bin:/bin"]},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
    }
    manifest = [{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]
    with tarfile.open(archive, "w") as out:
        _add(out, "config.json", json.dumps(config).encode())
        _add(out, "layer.tar", layer.getvalue())
        _add(out, "manifest.json", json.dumps(manifest).encode())


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    archive.addfile(member, io.BytesIO(content))
