"""What is there before anything is done? Values only; `agent.hostinstall.look` makes them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

SERVING = "serving "  # how the agent's status begins while nothing is missing


class Kind(Enum):
    """What has a name in the file system."""

    ABSENT = "absent"
    FILE = "file"
    LINK = "link"
    DIRECTORY = "directory"
    OTHER = "other"


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What lies at one path: the content of a small file, or where a link leads."""

    kind: Kind = Kind.ABSENT
    content: bytes = b""
    target: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Folder:
    """A version's folder: the unit and the form of the environment file in it."""

    unit: bytes = b""
    form: bytes = b""
    whole: bool = True  # its content is what its name says; looked at only for the wanted one


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceState:
    """The unit as systemd sees it. Source: systemctl(1), org.freedesktop.systemd1(5)."""

    active: str = "inactive"  # ActiveState
    result: str = ""
    main_pid: int = 0
    restarts: int = 0
    needs_reload: bool = False
    version: str = ""  # folder from which the main process runs
    status: str = ""  # StatusText: what the agent says of itself

    @property
    def serving(self) -> bool:
        """Whether pods can be given GPUs, as the agent says."""
        return self.active == "active" and self.status.startswith(SERVING)

    @property
    def wanted_up(self) -> bool:
        """Whether somebody wants it to run, however well it does."""
        return self.active in ("active", "activating", "reloading", "failed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The host, as far as an installation goes."""

    paths: Mapping[Path, Found] = field(default_factory=dict)
    folders: Mapping[str, Folder] = field(default_factory=dict)
    leftovers: tuple[Path, ...] = ()  # of an installation that was interrupted
    in_use: frozenset[str] = frozenset()  # folders whose program some process runs
    service: ServiceState | None = None  # None: there is no systemd to be told anything
    missing: str = ""  # what the agent still needs before it can be started, a sentence

    def at(self, path: Path) -> Found:
        """What lies at a path that was looked at."""
        return self.paths.get(path, Found())
