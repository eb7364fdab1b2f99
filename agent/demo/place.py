"""Where can the simulated node have its files? Libraries are loaded and programs run from there."""

import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

OTHERS = ("/var/tmp", "/dev/shm", "/run")  # noqa: S108 - a directory of our own is made in it


class NoPlaceError(Exception):
    """There is none; the message is for a person."""


def made_place(prefix: str) -> Path:
    """Make an empty directory where the node can have its files. Raises NoPlaceError."""
    return Path(tempfile.mkdtemp(prefix=prefix, dir=usable(wanted())))


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
