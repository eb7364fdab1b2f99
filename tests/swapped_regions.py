"""What a tenant can put in its region's place, and doing so without end while we read."""

import contextlib
import os
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol


class Home(Protocol):
    """A host's directory `root` with one container's."""

    root: Path
    directory: Path
    file: Path
    good: bytes  # a region


Way = Callable[[Home], None]


def as_fifo(home: Home) -> None:
    os.mkfifo(home.file)


def as_link(home: Home) -> None:
    (home.root / "secret").write_bytes(home.good)
    home.file.symlink_to(home.root / "secret")


def as_hard_link(home: Home) -> None:
    (home.root / "secret").write_bytes(home.good)
    os.link(home.root / "secret", home.file)


def as_socket(home: Home) -> None:
    here = Path.cwd()
    os.chdir(home.directory)
    try:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(home.file.name)
    finally:
        os.chdir(here)


def as_sparse(home: Home) -> None:
    home.file.write_bytes(home.good)
    os.truncate(home.file, 4 << 30)


def as_written(*content: bytes | bytearray) -> Way:
    def write(home: Home) -> None:
        home.file.write_bytes(b"".join(content))

    return write


@contextlib.contextmanager
def exchanging(home: Home, *more: Way) -> Iterator[Callable[[], None]]:
    """Put one thing after the other in the file's place, as fast as it goes; gives how to end it."""
    stop = threading.Event()
    ways: Sequence[Way] = (as_fifo, as_link, as_hard_link, as_sparse, as_written(b"x"), *more)

    def exchange() -> None:
        while not stop.is_set():
            for way in ways:
                home.file.unlink(missing_ok=True)
                (home.root / "secret").unlink(missing_ok=True)
                way(home)
                home.file.unlink(missing_ok=True)
                home.file.write_bytes(home.good)
                os.truncate(home.file, 4096)
                os.truncate(home.file, len(home.good))

    thread = threading.Thread(target=exchange)

    def end() -> None:
        stop.set()
        thread.join()

    thread.start()
    try:
        yield end
    finally:
        end()
