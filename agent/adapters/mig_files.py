"""Files of dynamic MIG: our book of what is whose, and HAMi's sign that GPUs are being divided."""

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from enum import Enum
from pathlib import Path

from agent import logs
from agent.adapters.safe_files import (
    opened_directory,
    opened_for,
    read_small,
    trusted_owner,
    write_all,
    write_whole,
)
from agent.boundaries import passed
from agent.domain.mig_books import Book, decode_book, encode_book
from agent.errors import NodeNotReady

log = logs.get(__name__)

NAME = "mig.json"
MAX_FILE_BYTES = 4 << 20
OURS = b"vgpu-agent\n"
MAX_LOCK_BYTES = 4096
STALE_AFTER_S = 600.0  # nothing that divides a GPU takes so long: who left it is dead
TRIES = 3  # to make the file, if it comes and goes


class MigBookFile:
    """Implements `ports.MigBook` in the state directory. Used by one thread at a time."""

    def __init__(self, state_dir: Path) -> None:
        self._folder = state_dir

    def load(self) -> Book:
        """See `ports.MigBook.load`. Raises NodeNotReady."""
        try:
            with opened_for("read which MIG instance is whose", self._folder, NAME) as folder:
                return decode_book(read_small(NAME, MAX_FILE_BYTES, dir_fd=folder) or b"")
        except NodeNotReady as error:
            if isinstance(error.__cause__, FileNotFoundError):
                return ()
            raise
        except ValueError as error:
            raise NodeNotReady(
                f"{self._folder / NAME}, in which the agent keeps which MIG instance is whose, "
                f"cannot be read ({error}); move it away: what runs is then known by its pod's "
                "annotation"
            ) from error

    def save(self, book: Book) -> None:
        """See `ports.MigBook.save`. Raises NodeNotReady."""
        with opened_for("write which MIG instance is whose", self._folder, NAME) as folder:
            write_whole(NAME, encode_book(book), 0o600, dir_fd=folder)
        passed("mig-book-written")


class _Sign(Enum):
    """What the file says at the moment."""

    NONE = "there is none"
    OURS = "we divide, or a life before this one did"
    THEIRS = "another program divides"
    UNBELIEVED = "anybody's, or too old or too new to be true"


class HamiApplyLock:
    """The file by which HAMi's plugin (2.7 to 2.9) and monitor know that MIG is being changed.

    While it is there HAMi's monitor leaves NVML alone. We make it for as long as we change
    something, and change nothing while it is somebody else's. Thread-safe; `held` is for one
    thread at a time. One for all who ask: only it knows whether the file is this life's.
    """

    def __init__(self, path: Path, *, now_s: Callable[[], float] = time.time) -> None:
        self._path = path
        self._now_s = now_s
        self._holding = False
        self._lock = threading.Lock()  # nobody sees the file before our name is in it

    def holder(self) -> str:
        """Which other program divides GPUs at the moment, and what to do; empty: none does."""
        with self._lock:
            sign = self._sign()
        return self._of_others() if sign is _Sign.THEIRS else ""

    def dividing(self) -> bool:
        """Whether GPUs are being divided at the moment, by us or by others."""
        with self._lock:
            return self._holding or self._sign() is _Sign.THEIRS

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Show that GPUs are being divided. A file that cannot be made is no hindrance.

        Raises NodeNotReady while another program divides them.
        """
        with self._lock:
            made = self._made()
            self._holding = True
        try:
            yield
        finally:
            with self._lock:
                if made:
                    self._take_away()
                self._holding = False

    def tidy(self) -> None:
        """Take away what a life before this one left: HAMi's monitor would wait for it for ever.

        For the node's only agent. Never raises.
        """
        with self._lock:
            if not self._holding:
                self._take_away()

    def _of_others(self) -> str:
        return (
            f"{self._path} says that GPUs are being divided by HAMi's device plugin; stop that "
            "plugin on this node, or wait until it is done"
        )

    def _sign(self) -> _Sign:
        try:
            with opened_directory(self._path.parent) as folder:
                found = os.stat(self._path.name, dir_fd=folder, follow_symlinks=False)
                if not trusted_owner(found):  # anybody may make files in /tmp
                    return _Sign.UNBELIEVED
                if self._is_ours(folder):
                    return _Sign.OURS
        except FileNotFoundError:
            log.recovered("mig apply lock ignored")
            return _Sign.NONE
        except OSError:
            return _Sign.UNBELIEVED
        if abs(self._now_s() - found.st_mtime) > STALE_AFTER_S:
            log.failing("mig apply lock ignored", file=self._path, error="its time cannot be true")
            return _Sign.UNBELIEVED
        log.recovered("mig apply lock ignored")
        return _Sign.THEIRS

    def _is_ours(self, folder: int) -> bool:
        return read_small(self._path.name, MAX_LOCK_BYTES, dir_fd=folder) == OURS

    def _made(self) -> bool:
        """Whether there is a file now that is ours to take away. Raises NodeNotReady."""
        for _ in range(TRIES):
            try:
                self._create()
            except FileExistsError:
                match self._sign():
                    case _Sign.THEIRS:  # begun since whoever asks us looked
                        raise NodeNotReady(self._of_others()) from None
                    case _Sign.OURS:
                        return True
                    case _Sign.UNBELIEVED:  # it stays: it is not ours, and a sign all the same
                        return False
                    case _Sign.NONE:  # it was just taken away
                        continue
            except OSError as error:
                log.failing("mig apply lock not made", file=self._path, error=error)
                return False
            log.recovered("mig apply lock not made")
            return True
        return False

    def _create(self) -> None:
        """Make the file with our name in it: without that it would pass for HAMi's.

        Raises OSError; nothing stays behind then.
        """
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        self._path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        with opened_directory(self._path.parent) as folder:
            fd = os.open(self._path.name, flags, 0o644, dir_fd=folder)
            try:
                write_all(fd, OURS)
            except OSError:
                os.unlink(self._path.name, dir_fd=folder)
                raise
            finally:
                os.close(fd)

    def _take_away(self) -> None:
        """Remove what is ours, and nothing that HAMi's plugin has written in its place."""
        with contextlib.suppress(OSError), opened_directory(self._path.parent) as folder:
            info = os.stat(self._path.name, dir_fd=folder, follow_symlinks=False)
            if trusted_owner(info) and self._is_ours(folder):
                os.unlink(self._path.name, dir_fd=folder)
                passed("mig-apply-lock-removed")
