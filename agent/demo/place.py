"""Where can the simulated node have its files? Libraries are loaded and programs run from there."""

import contextlib
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

AGAIN_S = 0.02  # until what was killed is gone
OTHERS = ("/var/tmp", "/dev/shm", "/run")  # noqa: S108 - a directory of our own is made in it


class NoPlaceError(Exception):
    """There is none; the message is for a person."""


def made_place(prefix: str, *, keep: bool = False) -> Path:
    """Make an empty directory where the node can have its files.

    Unless it is to be kept, it goes when this process ends, however that comes about, and so does
    the agent that was started with files in it. Call it before there are threads: it forks.

    Raises NoPlaceError.
    """
    place = Path(tempfile.mkdtemp(prefix=prefix, dir=usable(wanted())))
    if not keep:
        _remove_after_us(place)
    return place


def _remove_after_us(place: Path) -> None:
    """Leave a process behind that waits for our end: killed, we could remove nothing."""
    end, _ours = os.pipe()  # no program that we execute inherits it: it closes when we end
    open_to = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    if os.fork():
        os.close(end)
        signal.pthread_sigmask(signal.SIG_SETMASK, open_to)
        return
    try:
        os.setsid()  # what ends our group does not end it; what can be blocked, such as Ctrl-C, is
        os.dup2(end, 0)
        for opened in list(Path("/proc/self/fd").iterdir()):  # what we print must come to its end
            if opened.name != "0":
                with contextlib.suppress(OSError):
                    os.close(int(opened.name))
        os.read(0, 1)
        while _ended(place):
            time.sleep(AGAIN_S)
        shutil.rmtree(place, ignore_errors=True)
    finally:
        os._exit(0)


def _ended(place: Path) -> list[int]:
    """End what of our own program was started with files in this place; the pids."""
    name, program = os.fsencode(place), Path("/proc/self/exe").readlink()
    ended = []
    for process in (entry for entry in Path("/proc").iterdir() if entry.name.isdigit()):
        with contextlib.suppress(OSError):  # it has ended, or is another user's
            command = (process / "cmdline").read_bytes()
            if name in command and (process / "exe").readlink() == program:
                os.kill(int(process.name), signal.SIGKILL)
                ended.append(int(process.name))
    return ended


def wanted() -> Iterator[Path]:
    """Where to look, best first: what the user set, then what is on a host whose /tmp is noexec."""
    if named := os.environ.get("TMPDIR"):
        yield Path(named)
    yield from map(Path, ("/tmp", *OTHERS))  # noqa: S108 - as above


def _mount_flags(place: Path) -> int:
    return os.statvfs(place).f_flag


def usable(places: Iterable[Path], flags_of: Callable[[Path], int] = _mount_flags) -> Path:
    """The first directory that may be written and from where libraries load, or NoPlaceError.

    `flags_of` gives the flags of a path's mount, as statvfs(3).
    """
    tried = []
    for place in places:
        why = _unusable(place, flags_of)
        if not why:
            return place
        tried.append(f"{place} {why}")
    raise NoPlaceError(
        f"there is no place for the simulated node's files: {'; '.join(tried)}. Set TMPDIR to a "
        f"directory on a file system that is mounted neither noexec nor read-only"
    )


def _unusable(place: Path, flags_of: Callable[[Path], int]) -> str:
    try:
        flags = flags_of(place)
    except OSError as error:
        return f"cannot be used ({error.strerror})"
    if flags & os.ST_NOEXEC:
        return "is mounted noexec"
    if flags & os.ST_RDONLY or not place.is_dir() or not os.access(place, os.W_OK | os.X_OK):
        return "cannot be written"
    return ""
