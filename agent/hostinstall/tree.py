"""Where is a host's path in a tree that stands for the host? As if the tree were the root."""

import posixpath
import stat
from pathlib import Path

from agent.adapters.safe_files import trusted_owner
from agent.hostinstall.layout import InstallError

ROOT = Path("/")
MAX_LINKS = 40  # source: Linux, include/linux/namei.h, MAXSYMLINKS


def within(path: Path, root: Path) -> Path:
    """The path in the tree. A link on the way there leads to a place in the tree.

    What has the path's own name is not followed. Nobody else may change the tree meanwhile. Raises
    InstallError.
    """
    plain = Path(posixpath.normpath(path))
    return plain if root == ROOT else directory_within(plain.parent, root) / plain.name


def directory_within(path: Path, root: Path) -> Path:
    """The same for a directory, which may itself be a link. Raises InstallError."""
    if root == ROOT:
        return path
    there: list[str] = []
    left, links = path.as_posix().split("/")[::-1], 0
    while left:
        part = left.pop()
        if part in ("", ".", ".."):
            there = there[:-1] if part == ".." else there
            continue
        try:
            target = str(root.joinpath(*there, part).readlink())
        except OSError:  # no link, or nothing
            there.append(part)
            continue
        links += 1
        if links > MAX_LINKS:
            raise InstallError(f"{path} in {root} leads through too many links; mend them")
        there = [] if target.startswith("/") else there
        left += target.split("/")[::-1]
    return root.joinpath(*there)


def check_place(prefix: Path, root: Path) -> None:
    """Refuse where another user could exchange what root is going to run. Raises InstallError."""
    place = directory_within(prefix, root)
    above = [path for path in place.parents if path.is_relative_to(root)]
    for path in (place, *above):
        try:
            info = path.stat()
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            raise InstallError(f"{path} cannot be looked at: {error.strerror}") from error
        sticky = info.st_mode & stat.S_ISVTX
        others = 0o022 if path == place else 0 if sticky else 0o002
        if trusted_owner(info) and not info.st_mode & others:
            continue
        raise InstallError(
            f"other users may write to {path} (owner {info.st_uid}, mode "
            f"{stat.S_IMODE(info.st_mode):o}), and so could exchange a program that root runs: "
            f"choose another --prefix, or `chown root {path}; chmod go-w {path}`"
        )
