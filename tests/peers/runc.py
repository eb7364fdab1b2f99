"""A real container: an OCI bundle made of what Allocate returned, run by runc.

What a container runtime and NVIDIA's toolkit add is added here: the file system, the usual mounts
and namespaces, and the driver's libraries, for which the simulated ones stand.
"""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from .container_tools import ContainerTools

RUN_S = 50
NAMESPACES = ("pid", "ipc", "uts", "mount", "network")
USUAL_MOUNTS: tuple[dict[str, Any], ...] = (
    {"destination": "/proc", "type": "proc", "source": "proc"},
    {
        "destination": "/dev",
        "type": "tmpfs",
        "source": "tmpfs",
        "options": ["nosuid", "strictatime", "mode=755", "size=65536k"],
    },
    {
        "destination": "/dev/shm",
        "type": "tmpfs",
        "source": "shm",
        "options": ["nosuid", "noexec", "nodev", "mode=1777", "size=65536k"],
    },
)
# Docker's and containerd's default set, as far as files and processes go.
CAPABILITIES = (
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_FOWNER",
    "CAP_KILL",
    "CAP_SETGID",
    "CAP_SETUID",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BindMount:
    """A path of the host in the container."""

    destination: str
    source: str
    read_only: bool = True


@dataclass(frozen=True, slots=True)
class Bundle:
    """A container that can be run: `directory` has its rootfs."""

    directory: Path
    args: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)
    mounts: Iterable[BindMount] = ()
    cgroup: str = ""  # path of one to be made; empty: as runc does by itself
    users_from: int = 0  # a user namespace whose user 0 is this one of the host; 0: none of its own

    def write(self) -> None:
        """Write config.json. Source: OCI runtime specification 1.0, config.md."""
        capabilities = dict.fromkeys(("bounding", "effective", "permitted"), CAPABILITIES)
        # As runtimes do, so that a mount inside another one is not hidden by it.
        ordered = sorted(self.mounts, key=lambda m: len(PurePosixPath(m.destination).parts))
        config = {
            "ociVersion": "1.0.2",
            "process": {
                "terminal": False,
                "user": {"uid": 0, "gid": 0},
                "args": list(self.args),
                "env": [f"{name}={value}" for name, value in self.env.items()],
                "cwd": "/",
                "capabilities": capabilities,
                "noNewPrivileges": True,
            },
            "root": {"path": "rootfs", "readonly": False},
            "hostname": "tenant",
            "mounts": [*USUAL_MOUNTS, *(_bind(mount) for mount in ordered)],
            "linux": {
                "namespaces": [{"type": kind} for kind in NAMESPACES],
                **(_users(self.users_from) if self.users_from else {}),
                **({"cgroupsPath": self.cgroup} if self.cgroup else {}),
            },
        }
        (self.directory / "config.json").write_text(json.dumps(config, indent=1))


def _users(first: int) -> dict[str, Any]:
    """As kubelet has it for pods with `hostUsers: false`, without id-mapped mounts: older runc."""
    mapping = [{"containerID": 0, "hostID": first, "size": 65536}]
    namespaces = [{"type": kind} for kind in (*NAMESPACES, "user")]
    return {"namespaces": namespaces, "uidMappings": mapping, "gidMappings": mapping}


def _bind(mount: BindMount) -> dict[str, Any]:
    way = "ro" if mount.read_only else "rw"
    return {
        "destination": mount.destination,
        "type": "bind",
        "source": mount.source,
        "options": ["rbind", "rprivate", way],
    }


@dataclass(frozen=True, slots=True)
class Runc:
    """The runtime, with a state directory of its own."""

    tools: ContainerTools
    state: Path

    def command(self, *words: str) -> list[str]:
        """A command line of runc; rootless mode forgives a host without writable cgroups."""
        return [str(self.tools.runc), "--rootless", "true", "--root", str(self.state), *words]

    def run(self, bundle: Bundle, name: str) -> "subprocess.CompletedProcess[str]":
        """Run a container until it ends."""
        bundle.write()
        return self._finish("run", "--bundle", str(bundle.directory), name)

    def start(self, bundle: Bundle, name: str) -> "subprocess.Popen[bytes]":
        """Run a container whose main process we talk to by stdin and stdout."""
        bundle.write()
        return self._talk_to("run", "--bundle", str(bundle.directory), name)

    def execute(
        self, name: str, *words: str, stdin: str = "", user: str = "0:0"
    ) -> "subprocess.CompletedProcess[str]":
        """Run another process in a container, as `kubectl exec` would."""
        return self._finish("exec", "--user", user, name, *words, stdin=stdin)

    def start_another(self, name: str, *words: str) -> "subprocess.Popen[bytes]":
        """The same, for a process we talk to."""
        return self._talk_to("exec", name, *words)

    def delete(self, name: str) -> None:
        """End a container, if it is still there."""
        self._finish("delete", "--force", name)

    def _talk_to(self, *words: str) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(
            self.command(*words),
            env=self.tools.environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def _finish(self, *words: str, stdin: str = "") -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            self.command(*words), env=self.tools.environ, input=stdin,
            capture_output=True, text=True, timeout=RUN_S, check=False,
        )  # fmt: skip


def libraries_of(program: Path) -> list[Path]:
    """The loader and the libraries that a dynamic program needs, by the loader's own account."""
    listed = subprocess.run(
        ["ldd", str(program)], capture_output=True, text=True, check=True,
        env={"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"},
    ).stdout  # fmt: skip
    return [Path(path) for path in re.findall(r"(/\S+) \(0x", listed)]


def install(rootfs: Path, program: Path, where: str = "") -> None:
    """Copy a dynamic program and what it needs into a root file system."""
    place(rootfs, program, where or str(program))
    for library in libraries_of(program):
        place(rootfs, library, str(library))


def place(rootfs: Path, source: Path, where: str) -> None:
    """Copy a file to where it shall be inside."""
    target = rootfs / where.lstrip("/")
    target.parent.mkdir(parents=True, exist_ok=True)
    if not target.exists():
        shutil.copy(source, target)


def unusable(tools: ContainerTools, scratch: Path) -> str:
    """Why runc cannot run a container here, in its words; empty: it can."""
    if os.geteuid() != 0:
        return "it needs root"
    bundle = Bundle(scratch / "probe", args=("/bin/busybox", "true"))
    place(bundle.directory / "rootfs", tools.busybox, "/bin/busybox")
    done = Runc(tools, scratch / "probe-state").run(bundle, f"vgpu-probe-{os.getpid()}")
    return "" if done.returncode == 0 else (done.stderr or done.stdout).strip()[-400:]
