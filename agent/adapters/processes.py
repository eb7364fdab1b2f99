"""The processes of pods, as the host's /proc shows them.

Reading /proc never touches a tenant's files: links there are read, not followed. The exception is
the program of a process that uses a GPU without the hook; its file may lie on a file system that
hangs, and whoever calls `look` must bear that.

What is known of a process is kept while it runs the same program, and other people's processes are
looked at again only now and then, so that a round costs little on a node with thousands.
"""

import errno
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from agent import logs
from agent.adapters.proc_files import (
    ENDED,
    MOUNTINFO_BYTES,
    NOT_THERE,
    READ,
    entry_in_use,
    entry_of,
    opened,
    text_of,
)
from agent.domain.enforcement import Granted, Process, Seen
from agent.domain.executables import Linkage, linkage_of
from agent.domain.identities import is_identity, leaves_no_mark
from agent.domain.proc_text import (
    Life,
    Mapped,
    Place,
    granted_mount,
    is_gpu_device,
    life_of,
    mapped,
    pid_inside,
    place_of,
)

log = logs.get(__name__)

# Source: Linux, include/linux/proc_ns.h, PROC_PID_INIT_INO: who is in it sees every process.
FIRST_PID_NAMESPACE = "pid:[4026531836]"
MAPS_BYTES, PIECE_BYTES = 1 << 24, 1 << 16
MAX_DESCRIPTORS = 1024
SURE_AFTER = 2  # looks: a container's first process is put into its cgroup a moment after fork
AGAIN_EVERY = 12  # rounds
_NONE_LEFT = (errno.EMFILE, errno.ENFILE)  # of descriptors: no process's doing, and true of all


@dataclass(frozen=True, slots=True)
class _Known:
    """A process of a pod that has grants; `process` is None while its container has none."""

    life: Life
    place: Place
    holder: tuple[str, str] = ("", "")  # pod uid (or name of the grant) and container
    process: Process | None = None


class HostProcesses:
    """Implements `ports.Processes`. Used by one thread."""

    def __init__(self, proc: Path, containers: str) -> None:
        """`containers`: name of the directory that holds all containers' own directories."""
        self._proc = proc
        self._containers = containers
        self._seeing: bool | None = None
        self._own_pod = ""
        self._round = 0
        self._others: dict[int, int] = {}  # pid -> looks
        self._known: dict[int, _Known] = {}
        # Whose a cgroup is, as a process in it has mounted: the grant, and the mount's container.
        self._by_mount: dict[Place, tuple[str, str]] = {}
        self._grants: Mapping[str, tuple[str, ...]] = {}  # by pod uid, under which grants are known
        self._unowned: tuple[str, ...] = ()  # names of grants of which nobody knows the pod yet

    def look(self, granted: Mapping[str, Granted]) -> Seen:
        """See `ports.Processes.look`. Raises OSError without a /proc, or descriptors to read it.

        What cannot be read of one process costs no other: a tenant can bring that about.
        """
        self._round += 1
        self._sort(granted)
        with os.scandir(self._proc) as entries:
            pids = [int(e.name) for e in entries if e.name.isascii() and e.name.isdigit()]
        before, self._known = self._known, {}
        self._others = {pid: self._others[pid] for pid in pids if pid in self._others}
        if self._seeing is None:
            self._look_at_ourselves()
        unread: OSError | None = None
        for pid in pids:
            if self._others.get(pid, 0) >= SURE_AFTER and not self._is_due(pid):
                continue
            try:
                with entry_of(self._proc, pid) as entry:
                    self._look_at(pid, entry, before.get(pid), granted)
            except NOT_THERE:
                continue
            except OSError as error:
                if error.errno in _NONE_LEFT:
                    raise
                unread = error
        if unread:
            log.failing("process not looked at", error=unread)
        else:
            log.recovered("process not looked at")
        places = {known.place for known in self._known.values()}
        self._by_mount = {p: name for p, name in self._by_mount.items() if p in places}
        return Seen(bool(self._seeing), self._by_container(), places=self._places())

    def _sort(self, granted: Mapping[str, Granted]) -> None:
        grants: dict[str, tuple[str, ...]] = {}
        for name, pod in granted.items():
            uid = pod.owner_uid or ("" if is_identity(name) else name)
            grants[uid] = (*grants.get(uid, ()), name)
        self._unowned = grants.pop("", ())
        self._grants = grants

    def forget(self) -> None:
        """Keep nothing: nobody is looked for now."""
        self._others, self._known, self._by_mount = {}, {}, {}

    def _look_at_ourselves(self) -> None:
        self._seeing = False
        for name in ("self", "1"):
            try:
                with entry_of(self._proc, name) as entry:
                    if name == "self":
                        place = place_of(text_of(entry, "cgroup"))
                        self._own_pod = place.pod_uid if place else ""
                    namespace = os.readlink("ns/pid", dir_fd=entry)
            except OSError:
                continue
            self._seeing = self._seeing or namespace == FIRST_PID_NAMESPACE

    def _is_due(self, pid: int) -> bool:
        """Whether what seems certain is looked at again: a few of the processes each round."""
        return (self._round + pid) % AGAIN_EVERY == 0

    def _by_container(self) -> dict[tuple[str, str], tuple[Process, ...]]:
        found: dict[tuple[str, str], list[Process]] = {}
        for known in self._known.values():
            if known.process:
                found.setdefault(known.holder, []).append(known.process)
        return {key: tuple(processes) for key, processes in found.items()}

    def _places(self) -> dict[tuple[str, str], frozenset[Place]]:
        found: dict[tuple[str, str], frozenset[Place]] = {}
        for known in self._known.values():
            if known.process:
                found[known.holder] = found.get(known.holder, frozenset()) | {known.place}
        return found

    # --- one process --------------------------------------------------------------------------

    def _look_at(
        self, pid: int, entry: int, known: _Known | None, granted: Mapping[str, Granted]
    ) -> None:
        life = life_of(text_of(entry, "stat"))
        if life is None:
            return
        known = known if known and life == known.life else None
        try:
            with entry_in_use(entry, life) as used:
                self._look_into(pid, entry, used, life, known, granted)
        except ENDED:
            if life.ended and not known:  # nobody waits for it: there may be thousands, for good
                self._others[pid] = self._others.get(pid, 0) + 1
            raise

    def _look_into(
        self,
        pid: int,
        entry: int,
        used: int,
        life: Life,
        known: _Known | None,
        granted: Mapping[str, Granted],
    ) -> None:
        place = known.place if known else self._place(pid, used)
        if place is None:
            return
        self._seeing = True
        self._others.pop(pid, None)
        holder = self._holder(used, place, granted)
        pod = granted.get(holder[0])
        if pod is None or holder[1] not in pod.containers:
            self._known[pid] = _Known(life, place)
            return
        process = known.process if known else None
        grown = known is not None and life.mapped_bytes != known.life.mapped_bytes
        if process is None or self._is_due(pid) or not _is_as_before(process, used, grown=grown):
            process = _looked_into(pid, entry, used, life, process)
        elif not process.uses_gpu:
            process = replace(process, settled=True)
        self._known[pid] = _Known(life, place, holder, process)

    def _place(self, pid: int, used: int) -> Place | None:
        """Where in a pod that may have a grant it is; None: it is another's."""
        place = place_of(text_of(used, "cgroup"))
        if place and (self._unowned or place.pod_uid in self._grants):
            return place
        self._others[pid] = self._others.get(pid, 0) + 1
        # Where another pod's process can be seen, all can.
        self._seeing = self._seeing or bool(place and place.pod_uid != self._own_pod)
        return None

    def _holder(self, entry: int, place: Place, granted: Mapping[str, Granted]) -> tuple[str, str]:
        """Its grant and container: by the runtime's id, else by the mounts that Allocate gave it.

        A process can be rid of its mounts; then another one in its cgroup tells.
        """
        pod = granted.get(place.pod_uid)
        if pod and place.container_id in pod.container_ids:
            return place.pod_uid, pod.container_ids[place.container_id]
        found = self._by_mount.get(place) or self._mounted(entry, place)
        if found[1] and place.container_id:
            self._by_mount[place] = found
        name, container = found
        if is_identity(name) and container and name in granted:
            return name, min(granted[name].containers)  # it has the one
        if not container and (only := self._only_grant(place.pod_uid, granted)):
            return only
        return found

    def _only_grant(self, pod_uid: str, granted: Mapping[str, Granted]) -> tuple[str, str] | None:
        """The one grant of a pod, where grants mount nothing: all that it runs counts there."""
        names = self._grants.get(pod_uid, ())
        if len(names) != 1 or not leaves_no_mark(names[0]) or names[0] not in granted:
            return None
        return names[0], min(granted[names[0]].containers)

    def _mounted(self, entry: int, place: Place) -> tuple[str, str]:
        mounts = text_of(entry, "mountinfo", MOUNTINFO_BYTES)
        for name in (*self._grants.get(place.pod_uid, ()), *self._unowned):
            if container := granted_mount(mounts, self._containers, name):
                return name, container
        return place.pod_uid, ""


def _is_as_before(process: Process, used: int, *, grown: bool) -> bool:
    """Whether its maps need not be read, which costs the more the more it has mapped.

    Thousands of files in a process that imports PyTorch, of which a container may have dozens that
    use no GPU. Who comes to use one has a device of it open, as CUDA keeps it. A thread may have
    that in descriptors of its own, which are not among these; but not without mapping more.
    """
    if not process.readable:
        return False
    if process.uses_gpu:
        return process.library and bool(process.limits)
    if grown:
        return False
    try:
        return _has_gpu_open(used) is False
    except OSError:
        return False


def _looked_into(pid: int, entry: int, used: int, life: Life, before: Process | None) -> Process:
    """What a process is, by its own files in /proc. Raises OSError when it has ended.

    One that lives is never left out: its container would pass for idle, or for ended. Pids are
    read where they are the process's and no thread's.
    """
    readable, found, linkage = True, Mapped(), None
    try:
        inside = before.pid_inside if before else pid_inside(text_of(entry, "status"))
        namespace = before.pid_namespace if before else _namespace(entry)
        found, readable = _mapped(used)
        if not found.gpu and _has_gpu_open(used):
            found |= Mapped(gpu=True)
        if found.gpu and not found.library:
            linkage = _linkage(used)
    except ENDED:
        raise
    except OSError:  # it may not be looked into, or cannot be
        readable, inside, namespace = False, 0, 0
    return Process(
        pid=pid,
        pid_inside=inside,
        pid_namespace=namespace,
        start_time=life.start_time,
        library=found.library,
        uses_gpu=found.gpu,
        linkage=linkage,
        settled=before is not None,
        readable=readable,
        limits=found.limits,
    )


def _namespace(entry: int) -> int:
    """Inode of its pid namespace. Source: namespaces(7), `pid:[4026531836]`."""
    digits = os.readlink("ns/pid", dir_fd=entry).partition("[")[2].rstrip("]")
    return int(digits) if digits.isascii() and digits.isdigit() else 0


def _mapped(entry: int) -> tuple[Mapped, bool]:
    """What it has mapped, and whether that can be said: a map may be longer than we read."""
    found, rest, left = Mapped(), b"", MAPS_BYTES
    with opened("maps", entry) as fd:
        while left > 0:
            piece = os.read(fd, PIECE_BYTES)
            if not piece:
                return found, True
            left -= len(piece)
            lines, _, rest = (rest + piece).rpartition(b"\n")
            found |= mapped(lines)
    return found, found.library


def _has_gpu_open(entry: int) -> bool | None:
    """None: not among those that we look at, and there are more."""
    with opened("fd", entry, READ | os.O_DIRECTORY) as fd, os.scandir(fd) as entries:
        for number, descriptor in enumerate(entries):
            if number == MAX_DESCRIPTORS:
                return None
            try:
                path = os.readlink(descriptor.name, dir_fd=fd)
            except OSError:  # closed meanwhile, or of a path too long to be told: no device's
                continue
            if is_gpu_device(os.fsencode(path)):
                return True
    return False


def _linkage(entry: int) -> Linkage:
    try:
        name = os.readlink("exe", dir_fd=entry)
        with opened("exe", entry) as fd:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                return Linkage.OTHER
            return linkage_of(lambda at, size: os.pread(fd, size, at), name=name)
    except OSError:
        return Linkage.OTHER
