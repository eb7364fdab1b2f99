"""Open a directory of the host where it is, and go no way that somebody else has laid.

What is made, written or removed is so by its name in a directory that was opened: whoever exchanges
something above it meanwhile leads nothing astray. A link on the way is an administrator's, as where
/opt is on another disk, and is followed; one of another user's is refused.
"""

import contextlib
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from agent.adapters.safe_files import DIRECTORY, trusted_owner
from agent.hostinstall.layout import InstallError
from agent.hostinstall.tree import MAX_LINKS

NOT_FOLLOWED = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(slots=True)
class _Way:
    """Directories that were opened one below the other; the first is the root."""

    path: Path
    made: list[Path] | None
    opened: list[tuple[int, str]] = field(default_factory=list)

    def up(self, to: int) -> None:
        while len(self.opened) > max(to, 1):
            os.close(self.opened.pop()[0])

    def close(self) -> None:
        for fd, _ in self.opened:
            os.close(fd)

    def go(self) -> None:
        left, links = self.path.as_posix().split("/")[::-1], 0
        while left:
            part = left.pop()
            if part == "..":
                self.up(len(self.opened) - 1)
            elif part not in ("", ".") and (target := self._enter(part)) is not None:
                links += 1
                if links > MAX_LINKS:
                    raise InstallError(f"{self.path} leads through too many links; mend them")
                if target.startswith("/"):
                    self.up(1)
                left += target.split("/")[::-1]

    def _enter(self, part: str) -> str | None:
        """Go there; where a link leads that is there instead."""
        above = self.opened[-1][0]
        try:
            fd = os.open(part, NOT_FOLLOWED, dir_fd=above)
        except FileNotFoundError:
            if self.made is None:
                raise
            self._make(part, above, self.made)
            return None
        try:
            info = os.fstat(fd)
            if stat.S_ISLNK(info.st_mode):
                if not trusted_owner(info):
                    raise InstallError(
                        f"{part!a}, on the way to {self.path}, is a link of user {info.st_uid}, "
                        "who could lead elsewhere what root writes: remove it"
                    )
                return os.readlink("", dir_fd=fd)
            self.opened.append((os.open(".", DIRECTORY, dir_fd=fd), part))
        finally:
            os.close(fd)
        return None

    def _make(self, part: str, above: int, made: list[Path]) -> None:
        os.mkdir(part, 0o755, dir_fd=above)
        fd = os.open(part, DIRECTORY, dir_fd=above)
        self.opened.append((fd, part))
        os.fchmod(fd, 0o755)  # whatever the umask
        os.fsync(above)
        made.append(Path("/", *(name for _, name in self.opened[1:])))


@contextlib.contextmanager
def opened(path: Path, root: Path, *, made: list[Path] | None = None) -> Iterator[int]:
    """A descriptor of a directory of the host whose root is `root`.

    With `made` it is made if it is missing, and those above it; their paths are added there.
    Raises OSError, InstallError.
    """
    with _gone(path, root, made) as way:
        yield way.opened[-1][0]


def remove_empty(path: Path, root: Path) -> None:
    """Remove a directory, or what a link in its place leads to. Raises OSError, InstallError."""
    with _gone(path, root, None) as way:
        if len(way.opened) > 1:
            os.rmdir(way.opened[-1][1], dir_fd=way.opened[-2][0])


@contextlib.contextmanager
def _gone(path: Path, root: Path, made: list[Path] | None) -> Iterator[_Way]:
    way = _Way(path, made)
    try:
        way.opened.append((os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC), ""))
        way.go()
        yield way
    finally:
        way.close()
