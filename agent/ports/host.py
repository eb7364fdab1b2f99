"""Files and processes of the host, as the services need them."""

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from agent.domain.bypass import Whereabouts
from agent.domain.enforcement import Granted, Seen
from agent.domain.grants import GrantOwner, GrantRecord
from agent.domain.hook_files import HookFile
from agent.domain.mig_books import Book
from agent.domain.new_region import Piece, SeenRegion


@dataclass(frozen=True, slots=True)
class CacheDir:
    """A container's cache directory on the host."""

    name: str  # "<pod uid>_<container>"
    changed_at_s: float  # unix time of the last change of the directory


class Caches(Protocol):
    """Directories and files of the host that a container's mounts refer to."""

    def create(self, pod_uid: str, container: str) -> Path:
        """Make (or find again) the directory of a container. Raises NodeNotReady."""

    def write_limits(self, pod_uid: str, container: str, content: bytes) -> Path:
        """Write what a container may use, where it cannot. Raises NodeNotReady."""

    def read_limits(self, pod_uid: str, container: str) -> bytes:
        """The container's limits as they were written; empty when never. Raises NodeNotReady."""

    def seen_region(self, pod_uid: str, container: str, name: str) -> SeenRegion | None:
        """What has this name in the container's directory. Raises NodeNotReady."""

    def make_region(self, pod_uid: str, container: str, name: str, pieces: Sequence[Piece]) -> int:
        """Put a usage region there, whole and on disk; give its inode. Raises NodeNotReady."""

    def discard(self, name: str) -> None:
        """Delete a directory of ours, what is in it, and its limits; links are not followed."""

    def listed(self) -> tuple[CacheDir, ...]:
        """All directories whose name has the form that `create` gives."""

    def prepare(self) -> "HookFiles":
        """Make what all containers share and say which files there are. Raises NodeNotReady."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HookFiles:
    """Host paths of what is mounted into a container, as they are now."""

    library: Path
    preload: Path  # the file that becomes /etc/ld.so.preload
    lock_dir: Path
    license: Path | None = None
    validator: Path | None = None
    device_nodes: Sequence[
        str
    ] = ()  # existing common ones of PASS_DEVICE_SPECS, e.g. /dev/nvidiactl


@dataclass(frozen=True, slots=True)
class HookListing:
    """What of the hook's files there is on the host."""

    files: tuple[HookFile, ...]
    unfinished: tuple[HookFile, ...]  # what an agent that was killed did not write to its end
    linked: frozenset[str]  # names that links beside them lead to


class InstalledHooks(Protocol):
    """The files of the hook that are or were given to containers."""

    def listed(self) -> HookListing:
        """All of them; links are not followed. Raises NodeNotReady."""

    def mapped(self, files: Collection[HookFile]) -> frozenset[str] | None:
        """Names of those that some process of the host has mapped; None: that cannot be said."""

    def delete(self, file: HookFile) -> None:
        """Delete it if it is still the same, unchanged. Raises NodeNotReady."""


class GrantLog(Protocol):
    """Durable memory of the grants given on this node; survives a crash of the agent."""

    def records(self) -> tuple[GrantRecord, ...]:
        """All remembered grants, oldest first."""

    def record(self, record: GrantRecord) -> None:
        """Remember, on disk before returning. Raises NodeNotReady when the disk refuses.

        Takes the place of an earlier record of the same container.
        """

    def answered(self, record: GrantRecord) -> None:
        """Remember that kubelet gets the answer. Outlives the process, not the machine."""

    def own(self, record: GrantRecord, owner: GrantOwner) -> GrantRecord | None:
        """Note whose a grant turned out to be; gives it as it is then, None when it is gone."""

    def drop(self, record: GrantRecord) -> None:
        """Forget one container's grant, because it was not made after all; never raises."""

    def forget(self, pod_uids: frozenset[str]) -> None:
        """Drop all grants of these pods."""

    def tidy(self, live_uids: Collection[str], *, now_s: float) -> None:
        """Look after what could not be read, and what cannot be used any more; never raises.

        `live_uids` must come from a complete list of the node's pods; `now_s`: unix time.
        """


class Processes(Protocol):
    """The processes of pods on this node. Used by one thread; a read may hang as a disk does."""

    def look(self, granted: Mapping[str, Granted]) -> Seen:
        """Those of the containers with a grant in these pods, by uid. Raises OSError."""

    def forget(self) -> None:
        """Nothing is looked for until the next `look`."""


class ProcessPlaces(Protocol):
    """Which pod a process of this node belongs to."""

    def trace(self, pids: Collection[int]) -> Mapping[int, Whereabouts]:
        """Those that live and can be seen, by pid; never raises."""


class MigBook(Protocol):
    """Which GPU instance is whose, on disk."""

    def load(self) -> Book:
        """As it was saved last; empty when never. Raises NodeNotReady."""

    def save(self, book: Book) -> None:
        """Replace it, on disk when this returns. Raises NodeNotReady."""


class ApplyLock(Protocol):
    """How programs that divide the GPUs of a node keep out of each other's way."""

    def holder(self) -> str:
        """Which other program divides GPUs now, and what to do; empty: none does."""

    def held(self) -> AbstractContextManager[None]:
        """Show that we do. Raises NodeNotReady, on entering, while another program does."""
