"""Reading what the kernel says of one process: files of /proc, through its directory held open."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

TEXT_BYTES, MOUNTINFO_BYTES = 1 << 16, 1 << 20
READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
ENDED = (FileNotFoundError, ProcessLookupError)
NOT_THERE = (*ENDED, PermissionError)  # ended, or hidden from us: nothing to wonder at


@contextmanager
def entry_of(proc: Path, name: int | str) -> Iterator[int]:
    """A process's directory, held: what is read there is never of a later one with its pid."""
    fd = os.open(f"{proc}/{name}", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


@contextmanager
def opened(name: str, entry: int, flags: int = READ) -> Iterator[int]:
    """A file of it, open. Raises OSError."""
    fd = os.open(name, flags, dir_fd=entry)
    try:
        yield fd
    finally:
        os.close(fd)


def text_of(entry: int, name: str, limit_bytes: int = TEXT_BYTES) -> str:
    """The beginning of a file of /proc. Raises OSError."""
    pieces, left = [], limit_bytes
    with opened(name, entry) as fd:
        while left > 0 and (piece := os.read(fd, left)):
            pieces.append(piece)
            left -= len(piece)
    return b"".join(pieces).decode("ascii", "replace")
