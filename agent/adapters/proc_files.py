"""Reading what the kernel says of one process: files of /proc, through its directory held open."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from agent.domain.proc_text import Life, life_of

TEXT_BYTES, MOUNTINFO_BYTES = 1 << 16, 1 << 20
READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
HELD = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
ENDED = (FileNotFoundError, ProcessLookupError)
NOT_THERE = (*ENDED, PermissionError)  # ended, or hidden from us: nothing to wonder at


@contextlib.contextmanager
def entry_of(proc: Path, name: int | str) -> Iterator[int]:
    """A process's directory, held: what is read there is never of a later one with its pid."""
    fd = os.open(f"{proc}/{name}", HELD)
    try:
        yield fd
    finally:
        os.close(fd)


@contextlib.contextmanager
def entry_in_use(entry: int, life: Life) -> Iterator[int]:
    """The directory that shows what a process has: its own, or that of a thread of it.

    Where its first thread has ended (`pthread_exit` in main) and others go on, its own shows the
    name, pids and times of a zombie, and no mapping and no open file; under cgroup v1 no cgroup
    either. Raises FileNotFoundError when it has ended altogether.
    """
    if not life.ended:
        yield entry
        return
    with opened(f"task/{_living_thread(entry)}", entry, HELD) as thread:
        yield thread


def _living_thread(entry: int) -> str:
    with opened("task", entry, READ | os.O_DIRECTORY) as tasks, os.scandir(tasks) as threads:
        for thread in threads:
            try:
                with opened(thread.name, tasks, HELD) as held:
                    life = life_of(text_of(held, "stat"))
            except ENDED:
                continue
            if life and not life.ended:
                return thread.name
    raise FileNotFoundError


def directories_of(entry: str) -> Iterator[str]:
    """The directory of a process, and then of its threads: what the first shows nothing of.

    That of a process whose first thread has ended shows no mapping, as that of a kernel thread.
    """
    yield entry
    with contextlib.suppress(*ENDED), os.scandir(f"{entry}/task") as threads:
        yield from (thread.path for thread in threads if not entry.endswith(f"/{thread.name}"))


@contextlib.contextmanager
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
