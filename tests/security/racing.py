"""What a race on a path needs: a thread that exchanges it, and a bait that has to stay as it was."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from agent.errors import AgentError

LEAST_TURNS = 3


class Bait:
    """A directory with a file that must stay as they are, whoever is led to them."""

    def __init__(self, root: Path, content: bytes = b"untouched") -> None:
        self.directory = root / "bait"
        self.directory.mkdir(mode=0o750, parents=True)
        self.directory.chmod(0o750)  # modes that none of our files has
        self.file = self.directory / "secret"
        self.file.write_bytes(content)
        self.file.chmod(0o640)
        self._before = self._state()

    def _state(self) -> tuple[object, ...]:
        info, above = self.file.stat(), self.directory.stat()
        return (
            sorted(self.directory.iterdir()), self.file.read_bytes(), info.st_mode, info.st_uid,
            info.st_size, info.st_mtime_ns, above.st_mode, above.st_uid, above.st_mtime_ns,
        )  # fmt: skip

    def harm(self) -> str:
        """What became of it; empty: nothing."""
        now = self._state()
        return "" if now == self._before else f"before {self._before!r}, now {now!r}"

    def put_at(self, path: Path, kind: str) -> None:
        """Have a path lead here."""
        if kind == "hard link":
            path.hardlink_to(self.file)
        else:
            path.symlink_to(self.directory if kind == "directory link" else self.file)


@contextmanager
def racing(act: Callable[[], None]) -> Iterator[list[int]]:
    """Do something again and again, as fast as it goes, beside what is inside the block."""
    stop, turns = threading.Event(), [0]

    def run() -> None:
        while not stop.is_set():
            with suppress(OSError):
                act()
            turns[0] += 1

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield turns
    finally:
        stop.set()
        thread.join()


def exchanging(path: Path, with_what: Callable[[], None]) -> Callable[[], None]:
    """Take away what is at a path, put something else there, take that away."""

    def act() -> None:
        aside = path.with_name(f"aside-{time.monotonic_ns()}")
        path.rename(aside)
        with_what()
        remove(path)
        aside.rename(path)

    return act


def remove(path: Path) -> None:
    """A file, a link, or an empty directory."""
    try:
        path.unlink()
    except OSError:
        path.rmdir()


def insist(action: Callable[[], object], rounds: int, turns: list[int]) -> None:
    """Try it so often, and until there was a race: what fails is an error in words, and no other."""
    done = 0
    while done < rounds or turns[0] < LEAST_TURNS:
        with suppress(AgentError):
            action()
        done += 1
