"""What a race on a path needs: a thread that exchanges it, and a bait that has to stay as it was."""

import itertools
import os
import shutil
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from types import FrameType

from agent.errors import AgentError

LEAST_TURNS = 20  # of one path, each within one call of what is tried
MAX_CALLS = 5000  # in which there have to be so many
CALLING = (os.name, "_io", "io")  # modules of C that make system calls
# Before each system call of what is tried the other thread may get so many steps on. All remainders
# of a round of four are there: a machine on which each call lets it make three more always passed by
# what one or two lead to.
STEPS = (0, 0, 1, 2, 3)
MOST_SLEEPS, SLEEP_S = 50, 20e-6  # in which to wait for them
SWITCH_S = (
    20e-6  # by default each of its system calls could cost the thread 5 ms, and no race began
)


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

    def put_at(self, path: Path, kind: str, *, owner: int | None = None) -> None:
        """Have a path lead here; `owner`: whose a link is, the tester's own without."""
        leads_to = self.directory if kind == "directory link" else self.file
        if kind == "hard link":
            path.hardlink_to(self.file)
        elif owner is None:
            path.symlink_to(leads_to)
        else:
            aside = path.with_name(f"link-{time.monotonic_ns()}")  # never there as the tester's
            aside.symlink_to(leads_to)
            os.lchown(aside, owner, owner)
            os.link(aside, path, follow_symlinks=False)
            aside.unlink()


class NoRace(AssertionError):
    """What was to be exchanged while something was tried was not, or not often enough."""


@dataclass(slots=True)
class Race:
    """What has come of a race so far.

    `exchanges` counts how often the path had been the agent's and led to the bait, both while one
    and the same call of what is tried was under way; a try that failed, or that fell between two
    calls, is none. What makes system calls by the thousand need not be `giving_way`.
    """

    giving_way: bool = True
    exchanges: int = 0
    calls: int = 0
    steps: int = 0  # of the thread that exchanges: away, the bait, away, back
    _moment: int = 0  # odd while a call is under way
    _chance: Random = field(default_factory=lambda: Random(7))  # noqa: S311 - no secret

    def under_way(self) -> int:
        """Which call is under way; 0: none."""
        return self._moment if self._moment % 2 else 0

    def call(self, action: Callable[[], object]) -> None:
        """What fails is an error in words, and no other."""
        self._moment += 1
        if self.giving_way:
            sys.setprofile(self._give_way)
        try:
            with suppress(AgentError):
                action()
        finally:
            sys.setprofile(None)
            self._moment += 1
            self.calls += 1

    def insist(
        self, action: Callable[[], object], calls: int, what: str = "it", *, most: int = MAX_CALLS
    ) -> None:
        """Try it so often, and until the path was exchanged LEAST_TURNS times.

        Raises NoRace when it is not in `most` calls.
        """
        while self.calls < calls or self.exchanges < LEAST_TURNS:
            if self.calls >= most:
                raise NoRace(f"{what} was exchanged {self.exchanges} times in {self.calls} calls")
            self.call(action)

    def _give_way(self, _frame: FrameType, event: str, called: object) -> None:
        if event == "c_call" and (
            getattr(called, "__module__", "") in CALLING
            or isinstance(getattr(called, "__self__", None), socket.socket)
        ):
            until = self.steps + self._chance.choice(STEPS)
            for _ in range(MOST_SLEEPS):
                if self.steps >= until:
                    return
                time.sleep(SLEEP_S)


@contextmanager
def racing(act: Callable[[Race], None], *, giving_way: bool = True) -> Iterator[Race]:
    """Do something again and again, as fast as it goes, beside what is inside the block."""
    stop, race = threading.Event(), Race(giving_way=giving_way)

    def run() -> None:
        while not stop.is_set():
            with suppress(OSError):
                act(race)
            race.steps += 1

    thread, interval_s = threading.Thread(target=run), sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_S)
    thread.start()
    try:
        yield race
    finally:
        stop.set()
        thread.join()
        sys.setswitchinterval(interval_s)


def exchanging(path: Path, put: Callable[[], None]) -> Callable[[Race], None]:
    """Take away what is at a path, put something else there, take that away, put the first back."""
    numbers = itertools.count()

    def act(race: Race) -> None:
        aside = path.with_name(f"aside-{next(numbers)}")
        call = race.under_way()
        path.rename(aside)
        race.steps += 1
        try:
            put()
            race.steps += 1
            if call and race.under_way() == call:
                race.exchanges += 1
            remove(path)
            race.steps += 1
        finally:
            back(aside, path)

    return act


def back(aside: Path, path: Path) -> None:
    """Put it back, unless there is another by now."""
    try:
        aside.rename(path)
    except OSError:
        shutil.rmtree(aside) if aside.is_dir() else aside.unlink()


def remove(path: Path) -> None:
    """A file, a link, or an empty directory."""
    try:
        path.unlink()
    except OSError:
        path.rmdir()
