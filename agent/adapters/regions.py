"""The usage regions of containers on the host: which slots there are, and telling host pids.

Every process of a container can do to its region whatever it likes while we work: exchange it for
a device or a pipe, truncate it, fill it with anything. So what is opened is known to be a regular
file before it is opened for more than being looked at (a device must not even be opened), nothing
is mapped, and what is written is four bytes inside the file.
"""

import contextlib
import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

from agent.adapters.caches import CONTAINERS, directory_name
from agent.adapters.safe_files import check_ours, opened_directory
from agent.domain.enforcement import RegionLook
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

_LOOK = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
# Without O_NONBLOCK a lease on the file, which its owner may take, makes us wait for its end.
_OPEN = os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


class _NoRegionError(Exception):
    """The file is none that is read or written; the message says why."""


class HostRegions:
    """Implements `ports.Regions` below one directory of the host. Keeps no state."""

    def __init__(self, host_vgpu_dir: Path) -> None:
        self._root = host_vgpu_dir

    def look(self, pod_uid: str, container: str, name: str) -> RegionLook:
        """See `ports.Regions.look`."""
        try:
            with self._opened(pod_uid, container, name, os.O_RDONLY) as fd:
                return RegionLook(slots=_slots(fd))
        except FileNotFoundError:
            return RegionLook()
        except _NoRegionError as error:
            return RegionLook(str(error))
        except OSError as error:
            return RegionLook(f"it cannot be read: {error.strerror or type(error).__name__}")

    def tell(self, pod_uid: str, container: str, name: str, told: Sequence[HostPid]) -> int:
        """See `ports.Regions.tell`."""
        try:
            with self._opened(pod_uid, container, name, os.O_RDWR) as fd:
                return sum(_told(fd, one) for one in told)
        except (_NoRegionError, OSError):
            return 0

    @contextlib.contextmanager
    def _opened(self, pod_uid: str, container: str, name: str, flags: int) -> Iterator[int]:
        """Raises OSError, _NoRegionError; NodeNotReady when the directories above are not ours."""
        with (
            opened_directory(self._root) as root,
            opened_directory(CONTAINERS, dir_fd=root) as parent,
        ):
            check_ours(root, self._root)
            check_ours(parent, self._root / CONTAINERS)
            with (
                opened_directory(directory_name(pod_uid, container), dir_fd=parent) as directory,
                _opened(name, directory, flags) as fd,
            ):
                yield fd


@contextlib.contextmanager
def _opened(name: str, directory: int, flags: int) -> Iterator[int]:
    looked_at = os.open(name, _LOOK, dir_fd=directory)
    try:
        info = os.fstat(looked_at)
        if not stat.S_ISREG(info.st_mode):
            raise _NoRegionError("it is no regular file")
        if info.st_nlink != 1:
            raise _NoRegionError("it is a file of more than one name")
        if problem := size_problem(info.st_size):
            raise _NoRegionError(problem)
        fd = os.open(f"/proc/self/fd/{looked_at}", flags | _OPEN)  # that file, whatever the name is
    finally:
        os.close(looked_at)
    try:
        if problem := header_problem(os.pread(fd, HEADER_BYTES, 0)):
            raise _NoRegionError(problem)
        yield fd
    finally:
        os.close(fd)


def _slots(fd: int) -> tuple[Slot, ...]:
    count = slots_in_use(os.pread(fd, HOST_PID.size, SLOT_COUNT_AT))
    return slots_of(os.pread(fd, count * SLOT_BYTES, SLOTS_AT))


def _told(fd: int, told: HostPid) -> bool:
    """Write a pid into a slot that still is that process's; take it back if it was not by then."""
    at = SLOTS_AT + told.slot.index * SLOT_BYTES
    if not _is_still(fd, at, told.slot):  # nor is it, where the file has become too short
        return False
    os.pwrite(fd, HOST_PID.pack(told.host_pid), at + HOST_PID_AT)
    if _is_still(fd, at, told.slot):
        return True
    if os.fstat(fd).st_size >= at + SLOT_BYTES:
        os.pwrite(fd, HOST_PID.pack(0), at + HOST_PID_AT)
    return False


def _is_still(fd: int, at: int, slot: Slot) -> bool:
    now = slot_at(os.pread(fd, SLOT_BYTES, at), slot.index)
    return now is not None and now.owner == slot.owner
