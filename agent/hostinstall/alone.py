"""One installation at a time: a lock that no other user can take, and that does not stay."""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from agent.hostinstall.layout import InstallError
from agent.hostinstall.tree import ROOT

LOCK = Path("/run/vgpu-agent-install.lock")
LOCK_OF_TREE = ".vgpu-agent-install.lock"


@contextlib.contextmanager
def alone(root: Path, *, dry_run: bool = False) -> Iterator[None]:
    """Be the only installation in this tree; who changes nothing needs not. Raises InstallError."""
    if dry_run:
        yield
        return
    path = LOCK if root == ROOT else root / LOCK_OF_TREE
    fd = _locked(path)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            path.unlink()
        os.close(fd)


def tidy(root: Path) -> None:
    """Take the lock's file away that one who was killed has left in a tree. Raises InstallError."""
    if root != ROOT and os.path.lexists(root / LOCK_OF_TREE):
        with alone(root):
            return


def _locked(path: Path) -> int:
    """A descriptor of the file of that name, locked: whoever ended meanwhile has removed his."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    while True:
        try:
            fd = os.open(path, flags, 0o600)
        except OSError as error:
            raise InstallError(
                f"{path}, by which two installations keep apart, cannot be made: {error.strerror}"
            ) from error
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(fd), path.lstat()):
                return fd
        except FileNotFoundError:
            pass
        except OSError as error:
            os.close(fd)
            raise InstallError(
                "another installation runs here; wait until it has ended"
                if isinstance(error, BlockingIOError)
                else f"{path} cannot be locked: {error.strerror}"
            ) from error
        os.close(fd)
