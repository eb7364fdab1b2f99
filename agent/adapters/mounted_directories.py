"""Do we still see the host's directories? A pod is given them at its start, and only then.

What has a directory of the host mounted keeps seeing that one when it is deleted there, though
another of its name is made at once: no file can be made in it, and nobody on the host sees what is.
Without a mount between, one that was deleted is not to be found, and whoever needs it makes it.
"""

import os
from collections.abc import Callable, Iterable
from pathlib import Path

from agent.supervisor import Lifeline

LOOK_EVERY_S = 5.0
# So the kernel ends the path of what has no name any more. Its count of links says less: overlayfs
# and some file systems in user space always tell the same.
DELETED = " (deleted)"


class MountedDirectories:
    """Service: has the agent leave once it holds a directory that the host has deleted."""

    name = "mounted-directories"

    def __init__(self, directories: Iterable[Path], leave: Callable[[str], None]) -> None:
        """`leave` is told why only a new process, with its mounts made anew, can go on."""
        self._directories = tuple(dict.fromkeys(directories))
        self._leave = leave

    def run(self, life: Lifeline) -> None:
        while not life.stopping:
            if lost := self.lost():
                self._leave(lost)
            life.pause(LOOK_EVERY_S)

    def lost(self) -> str:
        """Which directory is only ours any more, in a sentence; empty: none."""
        for directory in self._directories:
            if _is_deleted(directory):
                return (
                    f"{directory} was deleted on the host, and is still mounted here; the agent "
                    "has to be started anew to be given the one that is there now"
                )
        return ""


def _is_deleted(directory: Path) -> bool:
    """Whether what its path leads to has no name; of one that is not there, others tell."""
    try:
        descriptor = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        seen = Path(f"/proc/self/fd/{descriptor}").readlink()
        if not seen.name.endswith(DELETED) or seen.exists():
            return False
        # Still: without a mount it may have been deleted since we opened it.
        return os.path.samestat(os.fstat(descriptor), directory.stat())
    except OSError:
        return False
    finally:
        os.close(descriptor)
