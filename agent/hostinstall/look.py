"""See what is there: makes the snapshot that the plan is computed from."""

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from agent.config import Config
from agent.errors import ConfigError
from agent.hostinstall import environment_file
from agent.hostinstall.folder import digest_of
from agent.hostinstall.layout import (
    DATA,
    DEFAULT_PREFIX,
    PROGRAM,
    UNIT,
    Layout,
    is_folder_name,
    made_or_doomed,
    prefix_of,
)
from agent.hostinstall.snapshot import Folder, Found, Kind, Snapshot
from agent.hostinstall.systemd import Systemd
from agent.hostinstall.tree import directory_within, within

MAX_FILE_BYTES = 1 << 20
ENVIRONMENT_FORM = "vgpu-agent.env"


def look(layout: Layout, root: Path, systemd: Systemd | None, *, wanted: str = "") -> Snapshot:
    """The host below `root` as it is now; `wanted`: the folder whose content is looked at, too.

    Raises OSError, InstallError.
    """
    folders = {
        name: _folder(within(layout.prefix / name, root), whole=name != wanted)
        for name in _names(directory_within(layout.prefix, root))
        if is_folder_name(name)
    }
    paths = _paths(layout)
    leftovers = tuple(_leftovers(layout, root))
    return Snapshot(
        paths={path: found(within(path, root)) for path in (*paths, *leftovers)},
        folders=folders,
        leftovers=leftovers,
        in_use=frozenset(_in_use(directory_within(layout.prefix, root))),
        service=systemd.state() if systemd else None,
        missing=_missing(within(layout.environment, root)),
    )


def _paths(layout: Layout) -> tuple[Path, ...]:
    return (
        *(layout.prefix, layout.current, layout.previous, layout.trying),
        *(layout.etc, layout.environment, layout.new_environment),
        *(layout.unit.parent, layout.unit, layout.wanted.parent, layout.wanted),
        *(layout.link.parent, layout.link),
    )


def found(path: Path) -> Found:
    """What lies at a path. Raises OSError."""
    try:
        if path.is_symlink():
            return Found(kind=Kind.LINK, target=str(path.readlink()))
        if path.is_dir():
            return Found(kind=Kind.DIRECTORY)
        if not path.exists():
            return Found()
        if not path.is_file():
            return Found(kind=Kind.OTHER)
        with path.open("rb") as file:
            return Found(kind=Kind.FILE, content=file.read(MAX_FILE_BYTES))
    except NotADirectoryError:
        return Found()


def _names(directory: Path) -> list[str]:
    try:
        return sorted(path.name for path in directory.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []


def _folder(path: Path, *, whole: bool) -> Folder:
    return Folder(
        unit=found(path / DATA / UNIT).content,
        form=found(path / DATA / ENVIRONMENT_FORM).content,
        whole=whole or digest_of(path) == path.name.rpartition("-")[2],
    )


def _leftovers(layout: Layout, root: Path) -> Iterator[Path]:
    """What was being made when an installation was interrupted."""
    parents = {layout.prefix, *(p.parent for p in _paths(layout)), layout.etc}
    ours = {path.name for path in _paths(layout)}
    for parent in sorted(parents):
        for name in _names(directory_within(parent, root)):
            made = made_or_doomed(name)
            if made in ours or is_folder_name(made):
                yield parent / name


def folder_of(pid: int, prefix: Path) -> str:
    """The version's folder from which a process runs; empty: none of ours."""
    prefix = prefix.resolve()  # /opt may be a link
    with contextlib.suppress(OSError):
        program = Path(str(Path(f"/proc/{pid}/exe").readlink()).removesuffix(" (deleted)"))
        if program.name == PROGRAM and program.parent.parent == prefix:
            return program.parent.name
    return ""


def _in_use(prefix: Path) -> Iterator[str]:
    for entry in _names(Path("/proc")):
        if entry.isascii() and entry.isdigit() and (name := folder_of(int(entry), prefix)):
            yield name


def _missing(environment: Path) -> str:
    """What keeps the agent from starting at all, as far as the environment file tells."""
    there = found(environment)
    values = environment_file.parse(there.content)
    path = values.get("VGPU_KUBECONFIG") or values.get("KUBECONFIG") or ""
    if there.kind is Kind.ABSENT:
        path = "/etc/vgpu-agent/kubeconfig"  # what the form says
    needs = _needs_cluster(values.get("VGPU_MODE", ""))
    if not path and needs:
        return f"VGPU_KUBECONFIG in {environment} has to name a kubeconfig for the agent's account"
    if path and not Path(path).exists():
        other = "" if needs else f", or take VGPU_KUBECONFIG out of {environment}"
        return f"put a kubeconfig for the agent's account at {path}{other}"
    return ""


def _needs_cluster(mode: str) -> bool:
    """Whether an agent in this mode needs an API server."""
    config = Config(node_name="any")
    try:
        return (replace(config, mode=mode) if mode else config).follows_cluster
    except ConfigError:
        return True


def installed_prefix(root: Path) -> Path:
    """Where the unit that is there says that versions lie; the usual place without one."""
    unit = found(within(Layout.unit, root))
    return prefix_of(unit.content) or DEFAULT_PREFIX
