"""Files of dynamic MIG: our book of what is whose, and HAMi's sign that GPUs are being divided."""

import contextlib
import os
import time
from collections.abc import Callable, Iterator
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


class HamiApplyLock:
    """The file by which HAMi's plugin (2.7 to 2.9) and monitor know that MIG is being changed.

    While it is there HAMi's monitor leaves NVML alone. We make it for as long as we change
    something, and change nothing while it is somebody else's.
    """

    def __init__(self, path: Path, *, now_s: Callable[[], float] = time.time) -> None:
        self._path = path
        self._now_s = now_s
        self._holding = False

    def holder(self) -> str:
        """Who divides GPUs at the moment, in words; empty: nobody."""
        try:
            with opened_directory(self._path.parent) as folder:
                found = os.stat(self._path.name, dir_fd=folder, follow_symlinks=False)
                if not trusted_owner(found):  # anybody may make files in /tmp
                    return ""
                ours = read_small(self._path.name, MAX_LOCK_BYTES, dir_fd=folder) == OURS
                if ours and not self._holding:  # of a life before this one: others wait for it
                    os.unlink(self._path.name, dir_fd=folder)
                    passed("mig-apply-lock-removed")
        except OSError:
            return ""
        if ours:
            return ""
        if self._now_s() - found.st_mtime > STALE_AFTER_S:
            log.failing("mig apply lock ignored", file=self._path, error="it is too old to be true")
            return ""
        return f"{self._path} says that GPUs are being divided by HAMi's device plugin"

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Show that GPUs are being divided. A file that cannot be made is no hindrance."""
        made = False
        self.holder()  # what is left of a life before this one goes
        try:
            self._path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            with opened_directory(self._path.parent) as folder:
                fd = os.open(self._path.name, flags, 0o644, dir_fd=folder)
            try:
                made = True
                write_all(fd, OURS)
            finally:
                os.close(fd)
        except FileExistsError:
            pass  # an old one that is not believed
        except OSError as error:
            log.failing("mig apply lock not made", file=self._path, error=error)
        self._holding = True
        try:
            yield
        finally:
            self._holding = False
            if made:
                with (
                    contextlib.suppress(OSError),
                    opened_directory(self._path.parent) as folder,
                ):
                    os.unlink(self._path.name, dir_fd=folder)
