"""What containers count and are told: usage regions, limits, leases."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from agent.domain.enforcement import RegionLook
from agent.domain.lending import Lease
from agent.domain.limit_record import LimitRecord
from agent.domain.limits_file import LimitsFile
from agent.domain.region_reading import RegionName, RegionReading
from agent.domain.region_slots import HostPid
from agent.domain.switch_words import SwitchWords
from agent.domain.totals import Ledger


class Regions(Protocol):
    """The files in which containers count their use; tenants can write them."""

    def look(self, pod_uid: str, container: str, name: str) -> RegionLook:
        """The slots in file `name` of a container's directory. Raises NodeNotReady.

        What is not the region that the container's limits file names has a problem and no slots.
        """

    def tell(self, pod_uid: str, container: str, name: str, told: Sequence[HostPid]) -> int:
        """Write host pids into slots that still are the same processes'; how many were.

        Raises NodeNotReady.
        """


class RegionReader(Protocol):
    """The same files, for whoever wants to know all that they say. Touches none of them."""

    def directories(self) -> tuple[tuple[str, str], ...]:
        """Pod uid and name of the containers that have a directory. Raises NodeNotReady."""

    def read(self, names: Iterable[RegionName]) -> Iterator[RegionReading]:
        """The regions of these containers, in this order, each read when it is asked for.

        Raises NodeNotReady, before the first.
        """


class TotalsStore(Protocol):
    """Durable memory of counters, so that a restart of the agent sets none of them back."""

    def load(self) -> Ledger:
        """What was saved last; an empty one when that cannot be read. Never raises."""

    def save(self, ledger: Ledger) -> None:
        """Outlives the process on return, the machine some time later. Raises NodeNotReady."""


class LiveLimits(Protocol):
    """The limits files of containers that run. Thread-safe; every change is whole or not at all."""

    def read(self, pod_uid: str, container: str) -> LimitsFile | None:
        """The limits as they are; None: the container has no file, or it is none of this layout.

        Raises NodeNotReady.
        """

    def change(
        self, pod_uid: str, container: str, change: Callable[[LimitsFile], LimitsFile]
    ) -> LimitsFile | None:
        """Change devices' lines (or `alive_at_ns`) in place: a container has the file mounted.

        `change` may alter limits, what is lent and what is blocked; devices and all else stay.
        Containers see it at their next launch or allocation. Gives what holds now; None as in
        `read`. Raises NodeNotReady.
        """


class ChangedLimits(LiveLimits, Protocol):
    """Limits that were changed for good: they outlive the agent and a container's restarts."""

    def record(self, pod_uid: str, container: str) -> LimitRecord:
        """What was changed for a container; an empty record when nothing. Raises NodeNotReady."""

    def set_limits(self, pod_uid: str, container: str, record: LimitRecord) -> LimitsFile | None:
        """Remember this on disk, then let the container's file say so; give what holds.

        None, and nothing remembered, when it has no file. Raises NodeNotReady.
        """

    def settle(self, pod_uid: str, container: str) -> None:
        """Make the container's file say what its record does. Raises NodeNotReady."""

    def changed(self) -> tuple[tuple[str, str], ...]:
        """Pod uid and container of every record. Raises NodeNotReady."""

    def forget(self, pod_uid: str, container: str) -> None:
        """Drop the record of a container that is gone. Raises NodeNotReady."""


class Leases(LiveLimits, Protocol):
    """What is lent and blocked for a moment, written many times a second."""

    def lease(self, pod_uid: str, container: str, leases: Mapping[int, Lease]) -> bool:
        """Write what is lent and blocked of devices, by place, and nothing else of their lines.

        No more is lent than its share leaves of the GPU when it is written. Not kept on disk.
        False: the container has no limits file, or not these devices.
        Raises NodeNotReady.
        """


ContainerKey = tuple[str, str]  # pod uid, container


@dataclass(frozen=True, slots=True)
class Held:
    """Where a container's library looks whether it is blocked: a word of an open file."""

    fd: int
    at: int  # offset of the recent kernel
    identity: tuple[int, int]  # of the file: numbers of descriptors are used again


class RegionSwitches(Protocol):
    """The words of usage regions that libraries are steered by. Used by one thread.

    Tenants can write them, too, and everything around them.
    """

    def refresh(self) -> Mapping[ContainerKey, SwitchWords]:
        """Find the regions of all containers, keep them open, and read them. Raises NodeNotReady.

        Whatever is no region of a known layout is not among them.
        """

    def directories(self) -> frozenset[ContainerKey]:
        """All containers of which `refresh` found the directory, whatever is in it."""

    def put(
        self, key: ContainerKey, *, recent_kernel: int | None = None, switch: int | None = None
    ) -> bool:
        """Write words of a region that `refresh` found; False: it is none any more."""

    def recent_kernel(self, key: ContainerKey) -> int | None:
        """Of a region that `refresh` found, as it is now. A system call, no more."""

    def counters(self, wanted: Sequence[tuple[ContainerKey, int]]) -> list[bytes]:
        """Counters of containers' first devices, as they are now, for `switch_words.activity_at`.

        `wanted`: how many devices of whom; it is not changed afterwards. Empty: they cannot be had.
        A system call for each.
        """

    def held(self, key: ContainerKey) -> Held | None:
        """Where its library looks whether it is blocked."""

    def close(self) -> None:
        """Let go of all of them."""


class BlockGuard(Protocol):
    """Somebody who outlives the agent and then ends the blocks that have no end of their own."""

    def hold(self, held: Mapping[ContainerKey, Held]) -> bool:
        """Watch over exactly these from now on; none: nobody is needed.

        False: that is not sure, so nobody may be blocked who is not yet. Takes up to a second.
        """
