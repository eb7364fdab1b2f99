"""How do we get what people load images with? Debian's skopeo and containerd, like container_tools.

skopeo reads archives as podman, buildah and CRI-O do: it has their code. containerd is what most
nodes run; it runs without Kubernetes, with directories and a socket of its own.
"""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from .container_tools import PeersUnavailable, container_tools, unpacked
from .processes import Process

__all__ = ["Containerd", "PeersUnavailable", "Skopeo", "running_containerd", "skopeo"]

SKOPEO = ("skopeo", "libdevmapper1.02.1", "libgpgme11", "libassuan0", "libgpg-error0",
          "libselinux1", "libpcre2-8-0", "libudev1")  # fmt: skip
CONTAINERD = ("containerd",)
NAMESPACE = "k8s.io"  # where kubelet looks
STEP_S = 120
CONFIG = """
version = 2
root = "{state}/root"
state = "{state}/run"
disabled_plugins = ["io.containerd.grpc.v1.cri", "io.containerd.internal.v1.opt",
  "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.devmapper",
  "io.containerd.snapshotter.v1.zfs", "io.containerd.snapshotter.v1.aufs"]
[grpc]
  address = "{state}/c.sock"
[ttrpc]
  address = "{state}/c.sock.ttrpc"
"""


@dataclass(frozen=True, slots=True)
class Skopeo:
    """The program, with the libraries it needs."""

    root: Path

    def run(self, *words: str | Path) -> "subprocess.CompletedProcess[str]":
        """Run it, with a policy that trusts everything: there are no signatures."""
        libraries = [*self.root.glob("usr/lib/*-linux-gnu"), *self.root.glob("lib/*-linux-gnu")]
        return subprocess.run(
            [self.root / "usr" / "bin" / "skopeo", "--insecure-policy", *words],
            env={"PATH": os.defpath, "LD_LIBRARY_PATH": ":".join(map(str, libraries))},
            capture_output=True, text=True, timeout=STEP_S, check=False,
        )  # fmt: skip


def skopeo() -> Skopeo:
    """Fetched once. Raises PeersUnavailable."""
    return Skopeo(unpacked("skopeo", SKOPEO, 1))


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


@contextmanager
def running_containerd(state: Path) -> Iterator[Containerd]:
    """Start one in an empty directory with a short path. Raises PeersUnavailable."""
    root, tools = unpacked("containerd", CONTAINERD, 1), container_tools()
    places = [root / "usr" / "bin", tools.runc.parent]
    path = ":".join([*map(str, places), os.environ.get("PATH", os.defpath)])
    daemon = Containerd(root, state, {**tools.environ, "PATH": path})
    (state / "config.toml").write_text(CONFIG.format(state=state))
    words = [str(root / "usr" / "bin" / "containerd"), "--config", str(state / "config.toml")]
    process = Process(words, log=state / "containerd.log", environ=daemon.environ)
    process.start()
    try:
        process.wait_until(
            lambda: daemon.ctr("version").returncode == 0, within_s=60, what="containerd answers"
        )
        yield daemon
    finally:
        process.stop()
        shutil.rmtree(state / "root", ignore_errors=True)
