"""What an installation consists of. Each step can be repeated and leaves nothing half-made."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class MakeDirectory:
    """Make a directory, and those above it that are missing."""

    path: Path

    def __str__(self) -> str:
        return f"make the directory {self.path}"


@dataclass(frozen=True, slots=True)
class CopyFolder:
    """Put a version's folder there, whole, or nothing."""

    source: Path
    path: Path
    digest: str

    def __str__(self) -> str:
        return f"copy {self.source} to {self.path}"


@dataclass(frozen=True, slots=True)
class WriteFile:
    """Put a file there at once, in the place of whatever has its name."""

    path: Path
    content: bytes
    what: str = ""

    def __str__(self) -> str:
        return f"write {self.path}" + (f" ({self.what})" if self.what else "")


@dataclass(frozen=True, slots=True)
class PointLink:
    """Let a symbolic link lead there, at once."""

    path: Path
    target: str
    what: str = ""

    def __str__(self) -> str:
        return f"point {self.path} to {self.target}" + (f" ({self.what})" if self.what else "")


@dataclass(frozen=True, slots=True)
class Remove:
    """Remove a file or a link."""

    path: Path
    what: str = ""

    def __str__(self) -> str:
        return f"remove {self.path}" + (f" ({self.what})" if self.what else "")


@dataclass(frozen=True, slots=True)
class RemoveFolder:
    """Remove a folder with all that is in it."""

    path: Path
    what: str = ""

    def __str__(self) -> str:
        return f"remove {self.path} and all in it" + (f" ({self.what})" if self.what else "")


@dataclass(frozen=True, slots=True)
class EmptyFolder:
    """Remove a folder of the agent's at run time: its name is not taken away first."""

    path: Path

    def __str__(self) -> str:
        return f"remove {self.path} and all in it"


@dataclass(frozen=True, slots=True)
class RemoveIfEmpty:
    """Remove a directory when nothing of anybody else is in it."""

    path: Path

    def __str__(self) -> str:
        return f"remove the directory {self.path} if it is empty"


@dataclass(frozen=True, slots=True)
class Systemctl:
    """A command to systemd; one that `may_fail` only tidies up."""

    arguments: tuple[str, ...]
    may_fail: bool = False

    def __str__(self) -> str:
        return f"systemctl {' '.join(self.arguments)}"


@dataclass(frozen=True, slots=True)
class StartAgent:
    """Start the agent, anew if it runs, and watch whether it stays up; `serves`: and serves."""

    unit: str
    serves: bool = False

    def __str__(self) -> str:
        serves = " and serves, as it does now" if self.serves else ""
        return f"systemctl restart {self.unit}, and see that it stays active{serves}"


Step = (
    MakeDirectory | CopyFolder | WriteFile | PointLink | Remove | RemoveFolder | EmptyFolder
    | RemoveIfEmpty | Systemctl | StartAgent
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Plan:
    """Steps in their order, and what a person should be told whether or not there are any."""

    steps: tuple[Step, ...] = ()
    notes: tuple[str, ...] = ()

    def __iter__(self) -> Iterator[Step]:
        return iter(self.steps)
