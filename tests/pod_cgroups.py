"""Processes in real cgroups named as kubelet names those of pods, in pid namespaces of their own."""

import contextlib
import os
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path

from waiting import eventually

HIERARCHIES = ("/sys/fs/cgroup", "/sys/fs/cgroup/unified")
OWN_PIDS = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
JOIN = 'echo 0 > "$1" && shift && exec "$@"'


class CgroupsUnavailable(Exception):
    """This user may make no cgroups here."""


class PodCgroup:
    """The cgroup of one container, as containerd makes it with the systemd driver."""

    def __init__(self, pod_uid: str, container_id: str = "") -> None:
        self.container_id = container_id or uuid.uuid4().hex * 2
        top = _writable() / f"vgpu-test-{os.getpid()}.slice"
        pod = top / f"kubepods-burstable-pod{pod_uid.replace('-', '_')}.slice"
        self.path = pod / f"cri-containerd-{self.container_id}.scope"
        self.path.mkdir(parents=True)

    def command(self, *words: str | Path, own_pids: bool = False) -> list[str]:
        """A command line that runs the words in here."""
        inner = [*(OWN_PIDS if own_pids else ()), *map(str, words)]
        return ["sh", "-c", JOIN, "sh", str(self.path / "cgroup.procs"), *inner]

    def pids(self) -> list[int]:
        """Pids on the host."""
        return [int(pid) for pid in (self.path / "cgroup.procs").read_text().split()]

    def remove(self) -> None:
        """When its processes have ended."""
        eventually(lambda: not self.pids(), what=f"{self.path} is empty")
        for path in (self.path, self.path.parent, self.path.parent.parent):
            with contextlib.suppress(OSError):  # others may be in the upper ones
                path.rmdir()


def _writable() -> Path:
    for place in map(Path, HIERARCHIES):
        if (place / "cgroup.procs").exists():
            with contextlib.suppress(OSError):
                probe = place / f"vgpu-probe-{os.getpid()}"
                probe.mkdir()
                probe.rmdir()
                return place
    raise CgroupsUnavailable("cgroups of version 2 cannot be made here; run as root")


def hierarchies() -> list[Path]:
    """All that are mounted, of either version."""
    top = Path(HIERARCHIES[0])
    places = [top, *top.iterdir()] if top.is_dir() else []
    return [place for place in places if (place / "cgroup.procs").exists()]


def every_hierarchy_is_ours() -> bool:
    """Whether a container runtime may make cgroups wherever it wants one."""
    name = f"vgpu-probe-{os.getpid()}"
    try:
        for place in hierarchies():
            (place / name).mkdir()
            (place / name).rmdir()
    except OSError:
        return False
    return bool(hierarchies())


def remove_from_every_hierarchy(path: Path) -> None:
    """An empty cgroup, and those above it as far as they are empty."""
    for place in hierarchies():
        for part in (path, *path.parents[:-1]):
            with contextlib.suppress(OSError):
                (place / part.relative_to("/")).rmdir()


def host_pid_of(pid_inside: int, pids: Sequence[int]) -> int:
    """Which of the host's pids one in a namespace is; found without the code under test."""
    for pid in pids:
        status = Path(f"/proc/{pid}/status").read_text()
        (line,) = [line for line in status.splitlines() if line.startswith("NSpid:")]
        if line.split()[1:] == [str(pid), str(pid_inside)]:
            return pid
    raise LookupError(f"none of {pids} is {pid_inside} inside")


@contextlib.contextmanager
def pod_cgroup(pod_uid: str) -> Iterator[PodCgroup]:
    """One for a test."""
    cgroup = PodCgroup(pod_uid)
    try:
        yield cgroup
    finally:
        cgroup.remove()
