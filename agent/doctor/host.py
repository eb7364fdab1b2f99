"""The node as the checks see it: where its files are, its driver, its API server, its processes.

Files of the host are looked at below `root`; what settings name is where the agent sees it. Every
effect can be replaced, and what several checks ask is asked once.
"""

import errno
import os
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import quote

from agent.adapters.kube_answers import Request
from agent.adapters.kube_transport import KubeTransport
from agent.adapters.nvml import NvmlDriver
from agent.bundle import frozen_folder, hook_dir
from agent.config import Config
from agent.doctor import hook_probe
from agent.domain.gpu import Gpu
from agent.domain.hook_files import LIBRARY
from agent.errors import NvmlError, NvmlStale

MAX_FILE_BYTES = 4 << 20  # of a configuration file of the host
MAX_ENTRIES = 10_000  # of a directory that is gone through
CHILD_WITHIN_S = 9.0  # of a check that nobody bounds
CONNECT_WITHIN_S = 2.0
API_WITHIN_S = 6.0
PROBE_COMMAND = "doctor-probe"  # of the program, for child processes of checks


def probe_program() -> tuple[str, ...]:
    """How the child is started: the frozen program itself, or the module's file."""
    if frozen_folder() is not None:
        return (sys.executable, PROBE_COMMAND)
    return (sys.executable, "-I", "-S", str(Path(hook_probe.__file__)))


@dataclass(frozen=True, slots=True)
class Space:
    """What a file system has left."""

    free_bytes: int
    free_inodes: int  # negative: the file system does not count them


@dataclass(frozen=True, slots=True)
class Ended:
    """A child process that has ended."""

    code: int
    output: str
    errors: str


def space_of(path: Path) -> Space:
    """What is left where `path` is, or would be."""
    while not path.exists() and path != path.parent:
        path = path.parent
    found = os.statvfs(path)
    return Space(found.f_bavail * found.f_frsize, found.f_favail if found.f_files else -1)


def device_number(path: Path) -> tuple[int, int] | None:
    """Major and minor of a character device; None: there is none at this path."""
    try:
        info = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    if not stat.S_ISCHR(info.st_mode):
        return None
    return os.major(info.st_rdev), os.minor(info.st_rdev)


def run_child(words: Sequence[str], environ: Mapping[str, str], within_s: float) -> Ended:
    """Start a program with exactly this environment. Raises OSError, subprocess.TimeoutExpired."""
    done = subprocess.run(  # noqa: S603 - absolute paths, nothing of a tenant's in them
        list(words),
        env=dict(environ),
        capture_output=True,
        stdin=subprocess.DEVNULL,
        timeout=within_s,
        check=False,
        cwd="/",
    )
    out, err = (part[:4000].decode(errors="replace").strip() for part in (done.stdout, done.stderr))
    return Ended(done.returncode, out, err)


@dataclass(kw_only=True)
class Host:
    """One look at the node. What was found is kept: make another one to look again.

    `environ` is as the host gave it to us: programs are started with it.
    """

    config: Config
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    root: Path = Path("/")
    uid: int = field(default_factory=os.geteuid)
    nvml: NvmlDriver = field(default_factory=NvmlDriver)
    probe: tuple[str, ...] = field(default_factory=probe_program)
    hook: Path = field(default_factory=lambda: hook_dir() / LIBRARY)
    device_number: Callable[[Path], tuple[int, int] | None] = device_number
    space_of: Callable[[Path], Space] = space_of
    now_s: Callable[[], float] = time.time
    child_within_s: float = CHILD_WITHIN_S  # of the check that is done now

    def run_child(self, words: Sequence[str], environ: Mapping[str, str]) -> Ended:
        """As `run_child`, within the time that is left to a child of the check."""
        return run_child(words, environ, self.child_within_s)

    # --- files ----------------------------------------------------------------------------------

    def path(self, absolute: str | Path) -> Path:
        """Where a path of the host is for us."""
        return self.root / str(absolute).lstrip("/")

    @property
    def proc(self) -> Path:
        """The host's /proc."""
        own = self.config.host_proc
        return own if own != Path("/proc") or self.root == Path("/") else self.root / "proc"

    @property
    def dev(self) -> Path:
        """The host's /dev."""
        return self.path(self.config.dev_root or self.config.driver_root) / "dev"

    def read(self, path: Path, limit_bytes: int = MAX_FILE_BYTES) -> str:
        """The text of a regular file, cut at the limit. Raises OSError."""
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
        with os.fdopen(fd, "rb") as file:
            return file.read(limit_bytes).decode(errors="replace")

    def read_if_there(self, path: Path) -> str | None:
        """The text, or None where there is no such file. Raises OSError otherwise."""
        try:
            return self.read(path)
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return None

    def entries(self, path: Path) -> list[Path]:
        """What is in a directory, by name; nothing where there is none. Raises PermissionError."""
        try:
            with os.scandir(path) as found:
                names = [entry.name for entry, _ in zip(found, range(MAX_ENTRIES), strict=False)]
        except (FileNotFoundError, NotADirectoryError):
            return []
        return [path / name for name in sorted(names)]

    @property
    def contained(self) -> bool:
        """Whether we are in a pod that does not see the host's files."""
        return self.root == Path("/") and self.in_pod

    @property
    def in_pod(self) -> bool:
        """Whether kubelet has started us."""
        return bool(self.environ.get("KUBERNETES_SERVICE_HOST"))

    # --- the driver -----------------------------------------------------------------------------

    @cached_property
    def nvml_error(self) -> NvmlError | None:
        """Why NVML does not start; None: it does."""
        try:
            self.nvml.open()
        except NvmlError as error:
            return error
        return None

    @property
    def nvml_stale(self) -> bool:
        """Whether library and kernel module are of different versions."""
        return isinstance(self.nvml_error, NvmlStale)

    @cached_property
    def gpus(self) -> tuple[Gpu, ...]:
        """Every GPU that answers. Raises NvmlError."""
        return self.nvml.gpus()

    # --- the cluster ----------------------------------------------------------------------------

    @cached_property
    def transport(self) -> KubeTransport:
        """The way to the API server; nothing was asked yet."""
        return KubeTransport(self.config.kubeconfig)

    @cached_property
    def _whole_node(self) -> Mapping[str, Any]:
        name = self.config.node_name
        return self.asked(
            Request(
                verb="get",
                resource="nodes",
                method="GET",
                path=f"/api/v1/nodes/{quote(name, safe='')}",
                about=f"the Node {name}",
            )
        )

    @property
    def node(self) -> Mapping[str, Any]:
        """`metadata` of our Node. Raises ClusterError, ConfigError."""
        metadata = self._whole_node.get("metadata")
        return metadata if isinstance(metadata, dict) else {}

    @property
    def allocatable(self) -> Mapping[str, Any]:
        """What kubelet has to give, by our Node. Raises ClusterError, ConfigError."""
        status = self._whole_node.get("status")
        found = status.get("allocatable") if isinstance(status, dict) else None
        return found if isinstance(found, dict) else {}

    def asked(self, request: Request) -> Mapping[str, Any]:
        """What the API server answers. Raises ClusterError, ConfigError."""
        return self.transport.send(request, deadline_s=time.monotonic() + API_WITHIN_S)

    # --- processes and sockets ------------------------------------------------------------------

    def processes(self) -> Iterator[tuple[int, str]]:
        """Pid and program (its first word) of every process whose words can be read."""
        for entry in self.entries(self.proc):
            if not (entry.name.isascii() and entry.name.isdigit()):
                continue
            try:
                words = self.read(entry / "cmdline", 4096).split("\0")
            except OSError:
                continue
            if words[0]:
                yield int(entry.name), words[0]


def writable(path: Path, uid: int) -> bool:
    """Whether we can write there. Raises PermissionError where only root could tell."""
    if os.access(path, os.W_OK):
        return True
    if uid != 0:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
    return False


def listens(path: Path) -> bool:
    """Whether somebody takes connections at this Unix socket. Raises PermissionError."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as caller:
        caller.settimeout(CONNECT_WITHIN_S)
        try:
            caller.connect(str(path))
        except PermissionError:
            raise
        except OSError:
            return False
    return True


def is_socket(path: Path) -> bool:
    """Whether there is a socket file. Raises PermissionError."""
    try:
        return stat.S_ISSOCK(path.stat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False
