"""The usage regions of containers on the host: which slots there are, and telling host pids.

What is written is four bytes inside the file. `region_files` says how it is opened.
"""

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from agent.adapters.caches import directory_name
from agent.adapters.region_files import (
    NoRegionError,
    opened_containers,
    opened_region,
    seen_region,
)
from agent.adapters.safe_files import opened_directory
from agent.boundaries import passed
from agent.domain.enforcement import RegionLook
from agent.domain.expected_region import expected_region, spoiled
from agent.domain.limits_file import LimitsFile
from agent.domain.region import Rejected
from agent.domain.region_slots import (
    HEADER_BYTES,
    HOST_PID,
    HOST_PID_AT,
    SLOT_BYTES,
    SLOT_COUNT_AT,
    SLOTS_AT,
    HostPid,
    Slot,
    header_problem,
    size_problem,
    slot_at,
    slots_in_use,
    slots_of,
)


class HostRegions:
    """Implements `ports.Regions` below one directory of the host. Keeps no state."""

    def __init__(
        self,
        host_vgpu_dir: Path,
        limits: Callable[[str, str], LimitsFile | None] = lambda _uid, _container: None,
    ) -> None:
        """`limits`: as `LiveLimits.read`; says which file a container's region is."""
        self._root = host_vgpu_dir
        self._limits = limits

    def look(self, pod_uid: str, container: str, name: str) -> RegionLook:
        """See `ports.Regions.look`."""
        expected = expected_region(self._limits(pod_uid, container))
        try:
            with self._opened(pod_uid, container, name, os.O_RDONLY) as fd:
                if why := spoiled(expected, seen_region(fd)):
                    return RegionLook(why[1])
                return RegionLook(slots=_slots(fd))
        except FileNotFoundError:
            why = spoiled(expected, None)
            return RegionLook(why[1] if why else "")
        except NoRegionError as error:
            return RegionLook(str(error))
        except OSError as error:
            return RegionLook(f"it cannot be read: {error.strerror or type(error).__name__}")

    def tell(self, pod_uid: str, container: str, name: str, told: Sequence[HostPid]) -> int:
        """See `ports.Regions.tell`."""
        try:
            with self._opened(pod_uid, container, name, os.O_RDWR) as fd:
                return sum(_told(fd, one) for one in told)
        except (NoRegionError, OSError):
            return 0

    @contextlib.contextmanager
    def _opened(self, pod_uid: str, container: str, name: str, flags: int) -> Iterator[int]:
        """Raises OSError, NoRegionError; NodeNotReady when the directories above are not ours."""
        with (
            opened_containers(self._root) as parent,
            opened_directory(directory_name(pod_uid, container), dir_fd=parent) as directory,
            opened_region(name, directory, flags, size_problem) as (fd, _),
        ):
            if problem := header_problem(os.pread(fd, HEADER_BYTES, 0)):
                raise NoRegionError(problem, Rejected.FOREIGN)
            yield fd


def _slots(fd: int) -> tuple[Slot, ...]:
    count = slots_in_use(os.pread(fd, HOST_PID.size, SLOT_COUNT_AT))
    return slots_of(os.pread(fd, count * SLOT_BYTES, SLOTS_AT))


def _told(fd: int, told: HostPid) -> bool:
    """Write a pid into a slot that still is that process's; take it back if it was not by then."""
    at = SLOTS_AT + told.slot.index * SLOT_BYTES
    if not _is_still(fd, at, told.slot):  # nor is it, where the file has become too short
        return False
    os.pwrite(fd, HOST_PID.pack(told.host_pid), at + HOST_PID_AT)
    passed("host-pid-told")
    if _is_still(fd, at, told.slot):
        return True
    if os.fstat(fd).st_size >= at + SLOT_BYTES:
        os.pwrite(fd, HOST_PID.pack(0), at + HOST_PID_AT)
    return False


def _is_still(fd: int, at: int, slot: Slot) -> bool:
    now = slot_at(os.pread(fd, SLOT_BYTES, at), slot.index)
    return now is not None and now.owner == slot.owner
