"""How do we get what people load images with? Debian's packages of it, like container_tools.

skopeo reads archives as podman, buildah and CRI-O do: it has their code. containerd is what most
nodes run. It and Docker run without anything else, with directories and a socket of their own.
"""

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc

from .container_tools import PeersUnavailable, container_tools, unpacked
from .processes import Process

__all__ = ["PAUSE", "Containerd", "PeersUnavailable", "Skopeo", "running_containerd", "skopeo"]

SKOPEO = ("skopeo", "libdevmapper1.02.1", "libgpgme11", "libassuan0", "libgpg-error0",
          "libselinux1", "libpcre2-8-0", "libudev1")  # fmt: skip
CONTAINERD = ("containerd",)
PODMAN = ("podman", "conmon", "libsubid4", *SKOPEO[1:])
DOCKER = ("docker.io", "tini", "libdevmapper1.02.1", "libsystemd0")
NAMESPACE = "k8s.io"  # where kubelet looks
PAUSE = "localhost/pause:1"  # what kubelet's sandboxes run
STEP_S = 120
CONFIG = """
version = 2
root = "{state}/root"
state = "{state}/run"
disabled_plugins = ["io.containerd.internal.v1.opt",
  "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.devmapper",
  "io.containerd.snapshotter.v1.zfs", "io.containerd.snapshotter.v1.aufs"]
[grpc]
  address = "{state}/c.sock"
[ttrpc]
  address = "{state}/c.sock.ttrpc"
[plugins."io.containerd.grpc.v1.cri"]
  stream_server_address = "127.0.0.1"
  stream_server_port = "0"
  sandbox_image = "{pause}"
  disable_apparmor = true
  restrict_oom_score_adj = true
[plugins."io.containerd.grpc.v1.cri".containerd]
  snapshotter = "native"
[plugins."io.containerd.grpc.v1.cri".cni]
  conf_dir = "{state}/networks"
"""
# In a mount namespace of its own: runtimes look for CDI files in /run/cdi alone.
CDI_HERE = """
set -e
mount -t tmpfs none /run
mkdir /run/cdi
mount --bind "$1" /run/cdi
shift
exec "$@"
"""
# In namespaces of its own: what it makes below /run, and its network, end with it.
DOCKERD = """
set -e
ip link set lo up
mount -t tmpfs none /run
exec "$@"
"""


@dataclass(frozen=True, slots=True)
class Skopeo:
    """The program, with the libraries it needs."""

    root: Path

    def run(self, *words: str | Path) -> "subprocess.CompletedProcess[str]":
        """Run it, with a policy that trusts everything: there are no signatures."""
        return subprocess.run(
            [self.root / "usr" / "bin" / "skopeo", "--insecure-policy", *words],
            env={"PATH": os.defpath, "LD_LIBRARY_PATH": _libraries(self.root)},
            capture_output=True, text=True, timeout=STEP_S, check=False,
        )  # fmt: skip


def skopeo() -> Skopeo:
    """Fetched once. Raises PeersUnavailable."""
    return Skopeo(unpacked("skopeo", SKOPEO, 1))


@dataclass(frozen=True, slots=True)
class Podman:
    """The program, with the libraries it needs; its storage is in `state`."""

    root: Path
    state: Path
    runc: Path  # without one it does nothing at all

    def run(self, *words: str | Path) -> "subprocess.CompletedProcess[str]":
        """Run it, as skopeo with a policy that trusts everything."""
        return self._run(words)

    def run_container(
        self, rootfs: Path, *command: str, cdi: Path, devices: Sequence[str]
    ) -> "subprocess.CompletedProcess[str]":
        """Run a container with CDI devices, as the files in `cdi` describe them. Needs root."""
        limits = ("--ulimit=nofile=1024:1024", "--ulimit=nproc=4096:4096")
        words = ("run", "--rm", "--network=none", "--security-opt=seccomp=unconfined", *limits)
        asked = (f"--device={name}" for name in devices)
        before = ("unshare", "--mount", "--propagation=private", "sh", "-c", CDI_HERE, "sh", cdi)
        return self._run((*words, *asked, "--rootfs", rootfs, *command), before)

    def _run(
        self, words: Sequence[str | Path], before: Sequence[str | Path] = ()
    ) -> "subprocess.CompletedProcess[str]":
        own = [f"--{name}={self.state / name}" for name in ("root", "runroot", "tmpdir")]
        own += ["--storage-driver=vfs", "--cgroup-manager=cgroupfs", "--events-backend=none"]
        own += [f"--conmon={self.root / 'usr/bin/conmon'}", f"--runtime={self.runc}"]
        environ = {"CONTAINERS_CONF": "/dev/null", "CONTAINERS_REGISTRIES_CONF": "/dev/null"}
        environ |= {"HOME": str(self.state), "XDG_RUNTIME_DIR": str(self.state)}
        libraries = (_libraries(self.root), container_tools().environ["LD_LIBRARY_PATH"])
        environ |= {"PATH": os.defpath, "LD_LIBRARY_PATH": ":".join(libraries)}
        return subprocess.run(
            [*before, self.root / "usr" / "bin" / "podman", *own, *words],
            env=environ, capture_output=True, text=True, timeout=STEP_S, check=False,
        )  # fmt: skip


def podman(state: Path) -> Podman:
    """Fetched once; its storage is in `state`, an empty directory with a short path.

    Raises PeersUnavailable.
    """
    root = unpacked("podman", PODMAN, 1)
    # The only place besides the system's in which it looks for a policy.
    policy = state / ".config" / "containers" / "policy.json"
    policy.parent.mkdir(parents=True)
    policy.write_text('{"default": [{"type": "insecureAcceptAnything"}]}')
    return Podman(root, state, container_tools().runc)


@dataclass(frozen=True, slots=True)
class Containerd:
    """A daemon of our own, and how to talk to it."""

    root: Path
    state: Path
    environ: dict[str, str]

    def client(self) -> list[str | Path]:
        """How a command line of its client begins."""
        program = self.root / "usr" / "bin" / "ctr"
        return [program, "--address", self.state / "c.sock", "--namespace", NAMESPACE]

    def ctr(self, *words: str | Path) -> "subprocess.CompletedProcess[str]":
        """Run its client."""
        return subprocess.run(
            [*self.client(), *words],
            env=self.environ, capture_output=True, text=True, timeout=STEP_S, check=False,
        )  # fmt: skip

    def image_status(self, name: str) -> bytes:
        """What kubelet is told when it asks whether an image is there; empty: it is not.

        Source: CRI v1, ImageStatusRequest{1: ImageSpec{1: name}}, ImageStatusResponse{1: Image}.
        """
        spec = b"\x0a" + bytes([len(name)]) + name.encode()
        with grpc.insecure_channel(f"unix:{self.state / 'c.sock'}") as channel:
            ask = channel.unary_unary("/runtime.v1.ImageService/ImageStatus")
            answer: bytes = ask(b"\x0a" + bytes([len(spec)]) + spec, timeout=STEP_S)
        return answer


@contextmanager
def running_containerd(state: Path, *before: str) -> Iterator[Containerd]:
    """Start one in an empty directory with a short path, as the last words of a command line.

    Raises PeersUnavailable.
    """
    root, tools = unpacked("containerd", CONTAINERD, 1), container_tools()
    places = [root / "usr" / "bin", tools.runc.parent]
    path = ":".join([*map(str, places), os.environ.get("PATH", os.defpath)])
    daemon = Containerd(root, state, {**tools.environ, "PATH": path})
    (state / "config.toml").write_text(CONFIG.format(state=state, pause=PAUSE))
    words = [str(root / "usr" / "bin" / "containerd"), "--config", str(state / "config.toml")]
    process = Process([*before, *words], log=state / "containerd.log", environ=daemon.environ)
    process.start()
    try:
        process.wait_until(
            lambda: daemon.ctr("version").returncode == 0, within_s=60, what="containerd answers"
        )
        yield daemon
    finally:
        process.stop()
        shutil.rmtree(state / "root", ignore_errors=True)


@dataclass(frozen=True, slots=True)
class Docker:
    """A daemon of our own, and how to talk to it."""

    root: Path
    state: Path
    environ: dict[str, str]

    def run(self, *words: str | Path) -> "subprocess.CompletedProcess[str]":
        """Run its client."""
        return subprocess.run(
            [self.root / "usr/bin/docker", "--host", f"unix://{self.state}/d.sock", *words],
            env=self.environ, capture_output=True, text=True, timeout=STEP_S, check=False,
        )  # fmt: skip


@contextmanager
def running_docker(state: Path) -> Iterator[Docker]:
    """Start one in an empty directory with a short path. Raises PeersUnavailable."""
    root, tools = unpacked("docker", DOCKER, 1), container_tools()
    places = [root / "usr" / "sbin", unpacked("containerd", CONTAINERD, 1) / "usr" / "bin"]
    path = ":".join([*map(str, [*places, tools.runc.parent]), os.environ.get("PATH", os.defpath)])
    libraries = f"{_libraries(root)}:{tools.environ['LD_LIBRARY_PATH']}"
    environ = {"PATH": path, "LD_LIBRARY_PATH": libraries, "HOME": str(state)}
    docker = Docker(root, state, environ)
    (state / "daemon.json").write_text("{}")
    own = [f"--data-root={state}/data", f"--exec-root={state}/exec", f"--pidfile={state}/pid"]
    own += [f"--host=unix://{state}/d.sock", f"--config-file={state}/daemon.json"]
    own += ["--iptables=false", "--ip6tables=false", "--ip-forward=false", "--bridge=none"]
    own += ["--storage-driver=vfs"]
    words = ["unshare", "--mount", "--net", "sh", "-c", DOCKERD, "dockerd", "dockerd", *own]
    process = Process(words, log=state / "docker.log", environ=environ)
    process.start()
    try:
        process.wait_until(
            lambda: docker.run("version").returncode == 0, within_s=60, what="docker answers"
        )
        yield docker
    finally:
        process.stop()
        shutil.rmtree(state / "data", ignore_errors=True)


def _libraries(root: Path) -> str:
    places = [*root.glob("usr/lib/*-linux-gnu"), *root.glob("lib/*-linux-gnu")]
    return ":".join(map(str, places))
