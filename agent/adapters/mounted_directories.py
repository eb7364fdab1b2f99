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


class MountedDirectories:
    """Service: has the agent leave once it holds a directory that the host has deleted."""

    name = "mounted-directories"

    def __init__(self, directories: Iterable[Path], leave: Callable[[str], None]) -> None:
        """`leave` is told why only a new process, with its mounts made anew, can go on."""
        self._directories = tuple(dict.fromkeys(directories))
        self._leave = leave
        # Some file systems count no links of directories: there a missing one says nothing.
        self._linked: set[Path] = set()

    def run(self, life: Lifeline) -> None:
        while not life.stopping:
            if lost := self.lost():
                self._leave(lost)
            life.pause(LOOK_EVERY_S)

    def lost(self) -> str:
        """Which directory is only ours any more, in a sentence; empty: none."""
        for directory in self._directories:
            try:
                links = os.stat(directory).st_nlink
            except OSError:
                continue  # it is not there, or not to be looked at: others say so
            if links:
                self._linked.add(directory)
            elif directory in self._linked:
                return (
                    f"{directory} was deleted on the host, and is still mounted here; the agent "
                    "has to be started anew to be given the one that is there now"
                )
        return ""
