"""A tree that stands for a host, small releases to install in it, and a systemd that obeys."""

import os
import stat
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from agent.hostinstall.command import Host, release_of
from agent.hostinstall.layout import Layout
from agent.hostinstall.plan import Release
from agent.hostinstall.snapshot import ServiceState
from agent.hostinstall.systemd import NotUpError

SHIPPED = Path(__file__).parents[1] / "packaging" / "systemd"


def made_release(folder: Path, version: str = "1.0.0", *, form: str = "#A=\n") -> Release:
    """A frozen agent as far as an installation goes."""
    data = folder / "_internal" / "packaging" / "systemd"
    data.mkdir(parents=True)
    (data / "vgpu-agent.service").write_bytes((SHIPPED / "vgpu-agent.service").read_bytes())
    (data / "vgpu-agent.env").write_text(form)
    (folder / "_internal" / "library.so").write_bytes(os.urandom(100_000))
    program = folder / "vgpu-agent"
    program.write_text(f'#!/bin/sh\necho \'{{"version": "{version}"}}\'\n')
    program.chmod(0o755)
    return release_of(folder, version)


def tree(root: Path) -> dict[str, object]:
    """Everything below: kind, mode and content."""
    found: dict[str, object] = {}
    for path in sorted(root.rglob("*")):
        info = path.lstat()
        name = str(path.relative_to(root))
        if stat.S_ISLNK(info.st_mode):
            found[name] = f"-> {path.readlink()}"
        elif stat.S_ISDIR(info.st_mode):
            found[name] = oct(info.st_mode)
        else:
            found[name] = (oct(info.st_mode), path.read_bytes())
    return found


@dataclass
class ObedientSystemd:
    """Implements `Systemd`: runs what `current` leads to, unless that is said to be broken."""

    root: Path
    layout: Layout = field(default_factory=Layout)
    broken: set[str] = field(default_factory=set)
    now: ServiceState = field(default_factory=ServiceState)
    mute: set[str] = field(default_factory=set)  # they run, and do not serve
    commands: list[str] = field(default_factory=list)

    def state(self) -> ServiceState:
        return self.now

    def command(self, *arguments: str) -> None:
        self.commands.append(" ".join(arguments))
        if arguments[0] == "stop":
            self.now = ServiceState()

    def start(self, *, serves: bool = False) -> None:
        self.commands.append("start")
        name = str((self.root / self.layout.current.relative_to("/")).readlink())
        if name in self.broken:
            self.now = ServiceState(active="failed")
            raise NotUpError("it ended at once")
        status = "driver: no library" if name in self.mute else "serving 2 of 2 GPUs"
        self.now = ServiceState(
            active="active", main_pid=len(self.commands), version=name, status=status
        )
        if serves and name in self.mute:
            raise NotUpError("it does not serve")


def host_in(
    root: Path, say: Callable[[str], None] = lambda _: None
) -> tuple[Host, ObedientSystemd]:
    """A host whose agent could be started."""
    systemd = ObedientSystemd(root)
    kubeconfig = root / "kubeconfig"
    (root / "etc" / "vgpu-agent").mkdir(parents=True, exist_ok=True)
    kubeconfig.touch()
    environment = root / "etc" / "vgpu-agent" / "vgpu-agent.env"
    if not environment.exists():
        environment.write_text(f"VGPU_KUBECONFIG={kubeconfig}\n")
    return Host(Layout(), root, systemd, say), systemd
