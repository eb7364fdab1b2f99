"""`vgpu-agent uninstall` where the agent is installed: end it, and remove what `install` placed."""

import contextlib
import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from agent.adapters.instance_lock import InstanceLock, LockUnavailable
from agent.adapters.proc_files import directories_of
from agent.config import Config
from agent.hostinstall import environment_file
from agent.hostinstall.alone import alone, tidy
from agent.hostinstall.command import Host, Options, Say, host_of
from agent.hostinstall.layout import InstallError, settings_of
from agent.hostinstall.plan import installed, plan_removal, plan_stop
from agent.hostinstall.steps import EmptyFolder, Plan, Remove, Step
from agent.hostinstall.tree import ROOT, directory_within, within

MAX_PROCESSES_NAMED = 5
PROC = Path("/proc")


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What was asked for on the command line, besides settings."""

    root: Path = ROOT
    dry_run: bool = False
    keep_node: bool = False
    purge: bool = False

    @property
    def of_tree(self) -> bool:
        """Whether it is about a tree that stands for a host, and so about no Node."""
        return self.root.absolute() != ROOT


@dataclass(frozen=True, slots=True)
class Removal:
    """An installation that is to go."""

    host: Host
    asked: Asked

    def stop(self) -> bool:
        """End the service; whether it runs, or ran. Raises InstallError."""
        with alone(self.host.root, dry_run=self.asked.dry_run):
            plan = plan_stop(self.host.look())
            self._take(plan)
        return bool(plan.steps)

    def environment(self) -> dict[str, str]:
        """The settings that the service has had."""
        snapshot, layout = self.host.look(), self.host.layout
        unit = snapshot.at(layout.unit).content
        file = snapshot.at(layout.environment).content
        return settings_of(unit) | environment_file.parse(file)

    def remove(self, config: Config) -> None:
        """Remove the files; `config`: the agent's settings, for what --purge removes.

        Raises InstallError.
        """
        host = self.host
        also: tuple[Step, ...] = ()
        stays = ""
        with alone(host.root, dry_run=self.asked.dry_run):
            if self.asked.purge:
                if not self.asked.dry_run:
                    _check_none_runs(directory_within(config.state_dir, host.root))
                also, stays = _purged(config, host.root)
            plan = plan_removal(host.look(), host.layout, purge=self.asked.purge, also=also)
            self._take(plan)
        for note in (*plan.notes, *((stays,) if stays else ())):
            host.say(note)

    def _take(self, plan: Plan) -> None:
        if not self.asked.dry_run:
            self.host.execute(plan)
            return
        for step in plan:
            self.host.say(f"would {step}")


def removal(asked: Asked, say: Say) -> Removal | None:
    """What there is to remove; None: nothing is installed. Raises InstallError."""
    host = host_of(Options(root=asked.root, dry_run=True), say)
    files_only = replace(host, systemd=None)  # which may not even be there to be asked
    if not asked.purge and not installed(files_only.look(), host.layout):
        if not asked.dry_run:
            tidy(host.root)
        return None
    return Removal(host_of(Options(root=asked.root, dry_run=asked.dry_run), say), asked)


def no_api_server(config: Config, environ: Mapping[str, str]) -> str:
    """Why there is no Node to take annotations back from; empty: there may be one."""
    if config.kubeconfig is None:
        if environ.get("KUBERNETES_SERVICE_HOST"):
            return ""
        return "no API server is configured"
    if not config.kubeconfig.exists():
        return f"there is no {config.kubeconfig}"
    return ""


def _check_none_runs(state_dir: Path) -> None:
    """An agent that runs, in a pod for instance, must not lose its state. Raises InstallError."""
    lock = InstanceLock(state_dir)
    try:
        if lock.try_keep_out():
            return
    except LockUnavailable as error:
        raise InstallError(f"nobody can tell whether an agent runs here: {error}") from error
    finally:
        lock.release()
    raise InstallError(
        f"nothing was removed, because an agent runs here ({lock.holder()}) and needs its state; "
        "stop it, or delete its DaemonSet, first"
    )


def _purged(config: Config, root: Path) -> tuple[tuple[Step, ...], str]:
    """How the agent's own folders go, and what is said of those that do not."""
    users = sorted(users_of(directory_within(config.host_vgpu_dir, root)))
    shared = [] if users else [config.lock_dir, config.host_vgpu_dir]
    gone = tuple(
        _removed(path, root)
        for path in (config.state_dir, *shared)
        if os.path.lexists(within(path, root))
    )
    if not users:
        return gone, ""
    named = ", ".join(map(str, users[:MAX_PROCESSES_NAMED]))
    return gone, (
        f"{config.host_vgpu_dir} stays, because processes use it (pid {named}"
        f"{', ...' if len(users) > MAX_PROCESSES_NAMED else ''}); run it again when those pods "
        "have ended, or remove the directory then"
    )


def _removed(path: Path, root: Path) -> Step:
    there = within(path, root)
    if there.is_symlink():
        return Remove(path, f"somebody's link; what it leads to, {there.readlink()}, stays")
    return EmptyFolder(path)


def users_of(directory: Path, proc: Path = PROC) -> set[int]:
    """Processes that have mapped a file below a directory, in whatever container they are."""
    inodes = set(_files_below(directory))
    return {pid for pid, inode in _mapped(proc) if inode in inodes} if inodes else set()


def _files_below(directory: Path) -> Iterator[int]:
    """Inodes of plain files. Containers make and remove some meanwhile, as deep as they like."""
    left = [str(directory)]
    while left:
        with contextlib.suppress(OSError), os.scandir(left.pop()) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):
                    info = entry.stat(follow_symlinks=False)
                    if stat.S_ISDIR(info.st_mode):
                        left.append(entry.path)
                    elif stat.S_ISREG(info.st_mode):
                        yield info.st_ino


def _mapped(proc: Path) -> Iterator[tuple[int, int]]:
    """Pid and inode of what is mapped from a directory of this name.

    Devices are not compared: file systems with subvolumes show another number here than stat(2).
    """
    for entry in os.scandir(proc):
        if not (entry.name.isascii() and entry.name.isdigit()):
            continue
        lines = next(filter(None, map(_lines_mapped, directories_of(entry.path))), [])
        for line in lines:
            parts = line.split(None, 5)
            if len(parts) > 5 and "vgpu" in parts[5] and parts[4].isdigit():  # noqa: PLR2004
                yield int(entry.name), int(parts[4])


def _lines_mapped(directory: str) -> list[str]:
    try:
        return (Path(directory) / "maps").read_text(errors="replace").splitlines()
    except OSError:  # it has ended
        return []
