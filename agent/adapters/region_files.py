"""Opening the usage regions of containers without being led astray.

Every process of a container can do to its region whatever it likes while we work: exchange it for
a device or a pipe, truncate it, fill it with anything. So what is opened is known to be a regular
file before it is opened for more than being looked at (a device must not even be opened), and
nothing is ever mapped: a file that is cut short ends who has it mapped.
"""

import contextlib
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

from agent.adapters.caches import CONTAINERS
from agent.adapters.safe_files import check_ours, opened_directory
from agent.domain.expected_region import HEAD_BYTES
from agent.domain.new_region import TAIL_HEAD_BYTES, SeenRegion
from agent.domain.region import TAIL_OFFSET, Rejected

_LOOK = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
# Without O_NONBLOCK a lease on the file, which its owner may take, makes us wait for its end.
_OPEN = os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


class NoRegionError(Exception):
    """The file is none that is read or written; the message says why."""

    def __init__(self, message: str, reason: Rejected) -> None:
        super().__init__(message)
        self.reason = reason


@contextlib.contextmanager
def opened_containers(host_vgpu_dir: Path) -> Iterator[int]:
    """The directory that holds the containers' own. Raises OSError.

    NodeNotReady when others can put something there.
    """
    with (
        opened_directory(host_vgpu_dir) as root,
        opened_directory(CONTAINERS, dir_fd=root) as containers,
    ):
        check_ours(root, host_vgpu_dir)
        check_ours(containers, host_vgpu_dir / CONTAINERS)
        yield containers


@contextlib.contextmanager
def opened_region(
    name: str, directory: int, flags: int, size_problem: Callable[[int], str]
) -> Iterator[tuple[int, int]]:
    """Descriptor and size of a region in a container's directory. Raises OSError, NoRegionError.

    `size_problem` gives why a file of so many bytes is none that is wanted; empty: it is.
    """
    fd, info = open_region(name, directory, flags, size_problem)
    try:
        yield fd, info.st_size
    finally:
        os.close(fd)


def open_region(
    name: str, directory: int, flags: int, size_problem: Callable[[int], str]
) -> tuple[int, os.stat_result]:
    """As `opened_region`, for whoever closes it later; and which file it is."""
    looked_at = os.open(name, _LOOK, dir_fd=directory)
    try:
        info = os.fstat(looked_at)
        _check(info, size_problem)
        # Somebody else's file, linked here for a moment, has one name again by now: not this one.
        now = os.stat(name, dir_fd=directory, follow_symlinks=False)
        if (now.st_dev, now.st_ino, now.st_nlink) != (info.st_dev, info.st_ino, 1):
            raise NoRegionError("it was exchanged while it was looked at", Rejected.CHANGED)
        fd = os.open(f"/proc/self/fd/{looked_at}", flags | _OPEN)  # that file, whatever the name is
    finally:
        os.close(looked_at)
    return fd, info


def seen_region(fd: int) -> SeenRegion:
    """What says which region this is. Raises OSError."""
    return SeenRegion(
        inode=os.fstat(fd).st_ino,
        head=os.pread(fd, HEAD_BYTES, 0),
        tail=os.pread(fd, TAIL_HEAD_BYTES, TAIL_OFFSET),
    )


def _check(info: os.stat_result, size_problem: Callable[[int], str]) -> None:
    if not stat.S_ISREG(info.st_mode):
        raise NoRegionError("it is no regular file", Rejected.NOT_A_FILE)
    if info.st_nlink != 1:
        raise NoRegionError("it is a file of more than one name", Rejected.HARD_LINK)
    if problem := size_problem(info.st_size):
        raise NoRegionError(problem, Rejected.FOREIGN)
