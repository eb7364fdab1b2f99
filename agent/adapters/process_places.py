"""Which pod and container a process of the driver's list belongs to, by the host's /proc."""

import os
from collections.abc import Collection, Mapping
from pathlib import Path

from agent.adapters.proc_files import MOUNTINFO_BYTES, entry_in_use, entry_of, text_of
from agent.domain.bypass import Whereabouts
from agent.domain.proc_text import Life, granted_mount, life_of, mounted_grant, place_of

MAX_PROGRAM_CHARS = 64
_DELETED = " (deleted)"


class HostProcessPlaces:
    """Implements `ports.ProcessPlaces`. Keeps nothing."""

    def __init__(self, proc: Path, containers: str) -> None:
        """`containers`: name of the directory that holds all containers' own directories."""
        self._proc = proc
        self._containers = containers

    def trace(self, pids: Collection[int]) -> Mapping[int, Whereabouts]:
        """See `ports.ProcessPlaces.trace`."""
        found = {pid: self._traced(pid) for pid in pids if pid > 0}
        return {pid: where for pid, where in found.items() if where}

    def _traced(self, pid: int) -> Whereabouts | None:
        try:
            with entry_of(self._proc, pid) as entry:
                life = life_of(text_of(entry, "stat"))
                if life is None:
                    return None
                with entry_in_use(entry, life) as used:
                    return self._found(used, life)
        except OSError:  # it has ended, is hidden from us, or ends just now
            return None

    def _found(self, used: int, life: Life) -> Whereabouts:
        place, program = place_of(text_of(used, "cgroup")), _program(used)
        if place is None:
            return Whereabouts(life.start_time, program)
        mounts = text_of(used, "mountinfo", MOUNTINFO_BYTES)
        container = granted_mount(mounts, self._containers, place.pod_uid)
        grant = "" if container else mounted_grant(mounts, self._containers)
        return Whereabouts(
            life.start_time, program, place.pod_uid, place.container_id, container, grant
        )


def _program(entry: int) -> str:
    """The name of its executable, as text that can go into a line."""
    try:
        name = os.path.basename(os.fsencode(os.readlink("exe", dir_fd=entry)))  # noqa: PTH119 - of a path elsewhere
    except OSError:
        return ""
    text = name.decode("ascii", "backslashreplace").removesuffix(_DELETED)
    return "".join(c if c.isprintable() else "?" for c in text)[:MAX_PROGRAM_CHARS]
