"""A stand-in container runtime: a real child process with exactly the env and mounts of a grant.

With namespaces (root, or unprivileged user namespaces allowed) `sim-container` gives the process a
root file system of its own, in which every mount is where Allocate said, read-only where it said
so, and `/etc/ld.so.preload` works as in a pod. Without, the process runs on the host's file
system: container paths in env values are translated to host paths through the mounts, and the
libraries named by the mounted `/etc/ld.so.preload` go to LD_PRELOAD. `Container.isolated` says
which way it runs.

It does not imitate: images, cgroups, pid and network namespaces, seccomp, CDI, and the NVIDIA
container toolkit, whose part (finding the driver, honouring NVIDIA_VISIBLE_DEVICES) is played by
the simulated driver itself.
"""

import contextlib
import functools
import json
import os
import selectors
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from agent.sim.driver import SimDriver

PRELOAD = "/etc/ld.so.preload"
RUNTIME_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
ANSWER_S = 10.0
MAX_LINE_BYTES = 1 << 20


class ContainerError(Exception):
    """The container could not be started, ended, or did not answer; the message says which."""


@dataclass(frozen=True, slots=True)
class SimMount:
    """A host path that the container sees; also used for device nodes."""

    container_path: str
    host_path: str
    read_only: bool = True


@dataclass(frozen=True, slots=True)
class DeviceInside:
    """A GPU as a program in the container sees it."""

    uuid: str
    total_mib: int  # cuMemGetInfo
    free_mib: int
    total_mem_mib: int  # cuDeviceTotalMem


@dataclass(frozen=True, slots=True)
class Answer:
    """What the tenant said to one command."""

    command: str
    ok: bool
    result: int  # CUresult: 0 success, 2 out of memory
    held_mib: int
    refused: int  # how often memory was refused so far
    devices: tuple[DeviceInside, ...]
    error: str = ""


@functools.cache
def namespaces_allowed(runtime: Path) -> bool:
    """Whether this user may give a process its own file system here. Asked once per process."""
    done = subprocess.run([runtime, "--check"], capture_output=True, check=False)
    return done.returncode == 0


class Container:
    """One running container. Not thread safe: one caller talks to it."""

    def __init__(self, name: str, process: "subprocess.Popen[bytes]", *, isolated: bool) -> None:
        """Use `Container.start`."""
        self.name = name
        self.isolated = isolated
        self.mounts: Sequence[SimMount] = ()
        self._process = process
        self._unread = b""
        self.ready: Answer | None = None

    @classmethod
    def start(
        cls,
        name: str,
        *,
        driver: SimDriver,
        env: Mapping[str, str],
        mounts: Sequence[SimMount] = (),
        devices: Sequence[SimMount] = (),
        command: Sequence[str] = (),
        isolated: bool | None = None,
    ) -> "Container":
        """Start `command` (default: the tenant, and wait until it is ready) with env and mounts.

        `isolated` None: with namespaces if they are allowed. The runtime adds only PATH, HOSTNAME
        and what finds the simulated driver, and none of these over the container's own.

        Raises ContainerError when it does not start, e.g. because a mount's source is missing.
        """
        runtime = driver.libraries / "sim-container"
        if isolated is None:
            isolated = namespaces_allowed(runtime)
        words = list(command) or [str(driver.libraries / "sim-tenant")]
        whole_env = {"PATH": RUNTIME_PATH, "HOSTNAME": name, **driver.environment(), **env}
        every_mount = [*mounts, *devices]
        if isolated:
            own = [
                SimMount(str(driver.libraries), str(driver.libraries)),
                SimMount(*(str(driver.config_path.parent),) * 2, read_only=False),
            ]
            words = _runtime_command(runtime, whole_env, [*own, *every_mount], words)
            process_env = {}
        else:
            _check_sources(name, every_mount)
            process_env = host_environment(whole_env, every_mount)
        process = subprocess.Popen(
            words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=process_env,
        )
        container = cls(name, process, isolated=isolated)
        container.mounts = every_mount
        if not command:
            try:
                container.ready = container._read_answer("starting")
            except ContainerError:
                container.stop()
                raise
        return container

    @property
    def pid(self) -> int:
        """Pid on the host; the same that the driver lists."""
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the process is still there."""
        return self._process.poll() is None

    def ask(self, command: str, timeout_s: float = ANSWER_S) -> Answer:
        """Give the tenant a command ("alloc 512", "free", "info", ...) and wait for its answer.

        Raises ContainerError when the tenant has ended or is silent.
        """
        stdin = self._process.stdin
        assert stdin is not None  # noqa: S101 - opened by start
        try:
            stdin.write(command.encode() + b"\n")
            stdin.flush()
        except (BrokenPipeError, ValueError):  # ValueError: we closed it ourselves
            raise ContainerError(self._ended(f"before {command!r}")) from None
        return self._read_answer(repr(command), timeout_s)

    def wait(self, timeout_s: float = ANSWER_S) -> tuple[int, str, str]:
        """Close stdin, wait for the end, give exit code and the rest of stdout and stderr."""
        try:
            out, err = self._process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            raise ContainerError(f"container {self.name} did not end in {timeout_s} s") from None
        said = (self._unread + out).decode(errors="replace")
        return self._process.returncode, said, err.decode(errors="replace")

    def kill(self) -> None:
        """End it as the kernel's OOM killer would: SIGKILL, no goodbye."""
        self._process.kill()
        self._process.wait()
        self._close()

    def stop(self, timeout_s: float = 2.0) -> None:
        """End it: close stdin, then SIGTERM, then SIGKILL. Harmless when it has ended."""
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()
        if self.running:
            self._process.terminate()
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._close()

    def _close(self) -> None:
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()

    def _read_answer(self, doing: str, timeout_s: float = ANSWER_S) -> Answer:
        line = self._read_line(doing, time.monotonic() + timeout_s)
        try:
            return decode_answer(line)
        except (ValueError, KeyError, TypeError) as error:
            raise ContainerError(
                f"container {self.name} said something unexpected while {doing}: {line[:200]!r}"
            ) from error

    def _read_line(self, doing: str, deadline_s: float) -> bytes:
        stdout = self._process.stdout
        assert stdout is not None  # noqa: S101 - opened by start
        with selectors.DefaultSelector() as ready:
            ready.register(stdout, selectors.EVENT_READ)
            while b"\n" not in self._unread:
                if not ready.select(max(0.0, deadline_s - time.monotonic())):
                    raise ContainerError(f"container {self.name} is silent while {doing}")
                piece = os.read(stdout.fileno(), 65536)
                self._unread += piece
                if not piece or len(self._unread) > MAX_LINE_BYTES:
                    raise ContainerError(self._ended(f"while {doing}"))
        line, _, self._unread = self._unread.partition(b"\n")
        return line

    def _ended(self, when: str) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(1.0)
        stderr = self._process.stderr
        complaint = ""
        if stderr is not None and not stderr.closed and not self.running:
            complaint = stderr.read().decode(errors="replace").strip()
        return f"container {self.name} ended {when}, exit code {self._process.poll()}: {complaint}"


def decode_answer(line: bytes) -> Answer:
    """Read one line of the tenant. Raises ValueError, KeyError or TypeError on anything else."""
    said: dict[str, Any] = json.loads(line)
    return Answer(
        command=str(said["command"]),
        ok=bool(said["ok"]),
        result=int(said["result"]),
        held_mib=int(said["held_mib"]),
        refused=int(said["refused"]),
        devices=tuple(
            DeviceInside(
                str(device["uuid"]),
                int(device["total_mib"]),
                int(device["free_mib"]),
                int(device["total_mem_mib"]),
            )
            for device in said["devices"]
        ),
        error=str(said.get("error", "")),
    )


def _runtime_command(
    runtime: Path, env: Mapping[str, str], mounts: Sequence[SimMount], words: Sequence[str]
) -> list[str]:
    line = [str(runtime)]
    for key, value in env.items():
        line += ["--env", f"{key}={value}"]
    for mount in mounts:
        way = "ro" if mount.read_only else "rw"
        line += ["--mount", mount.host_path, mount.container_path, way]
    return [*line, "--", *words]


def _check_sources(name: str, mounts: Sequence[SimMount]) -> None:
    for mount in mounts:
        if not Path(mount.host_path).exists():
            raise ContainerError(
                f"container {name} cannot be started: the source of a mount, {mount.host_path}, "
                "does not exist"
            )


def host_path(container_path: str, mounts: Sequence[SimMount]) -> str:
    """Where a path of the container lies on the host: the deepest mount that contains it."""
    path = PurePosixPath(container_path)
    holding = [mount for mount in mounts if path.is_relative_to(mount.container_path)]
    if not holding:
        return container_path
    deepest = max(holding, key=lambda mount: len(PurePosixPath(mount.container_path).parts))
    return str(PurePosixPath(deepest.host_path) / path.relative_to(deepest.container_path))


def host_environment(env: Mapping[str, str], mounts: Sequence[SimMount]) -> dict[str, str]:
    """The env for a process without a root of its own: paths translated, preloads as a variable."""
    translated = {
        key: host_path(value, mounts) if value.startswith("/") and ":" not in value else value
        for key, value in env.items()
    }
    preload = Path(host_path(PRELOAD, mounts))
    if str(preload) != PRELOAD:
        named = preload.read_text().split()
        translated["LD_PRELOAD"] = " ".join(host_path(library, mounts) for library in named)
    return translated
