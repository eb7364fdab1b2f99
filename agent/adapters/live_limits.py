"""Limits files of containers that run, changed in place: they are mounted, so never exchanged.

Limits go into the container's record first, on disk, then into its file, line by line: the record
is what holds, the file is made to say it. What is lent or blocked goes into the file alone, many
times a second. Sources: docs/limits-file.md (the sequence of a line), hook/limits.c (its reader).
"""

import contextlib
import os
import stat
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from agent import logs
from agent.adapters import exchanged_limits
from agent.adapters.caches import EXCHANGED, LIMITS, directory_name, is_directory_name
from agent.adapters.limit_records import LimitRecords
from agent.adapters.mapped_limits import MappedLimits
from agent.adapters.safe_files import (
    check_ours,
    opened_directory,
    refusing,
    remove_unfinished,
    trusted_owner,
)
from agent.domain.lending import Lease
from agent.domain.limit_lines import (
    changes_only_lines,
    limits_in,
    with_limits,
    without_stale_leases,
)
from agent.domain.limit_record import LimitRecord
from agent.domain.limits_file import FILE_BYTES, LimitsFile, MalformedLimits
from agent.domain.proc_text import FileId
from agent.errors import NodeNotReady

log = logs.get(__name__)

_EXCHANGED_TRIES = 3


class HostLiveLimits:
    """Implements `Leases` and `ChangedLimits` below one directory of the host. Thread-safe.

    Leases and limits of one container may be changed at the same time: limits wait for the disk,
    leases do not wait for limits.
    """

    def __init__(
        self,
        host_vgpu_dir: Path,
        state_dir: Path,
        *,
        clock_ns: Callable[[], int] = time.monotonic_ns,
        most_names: int = 1,
    ) -> None:
        """`most_names`: more than one only where a hard link stands for a container's mount."""
        self._most_names = most_names
        self._folder, self._exchanged = host_vgpu_dir / LIMITS, host_vgpu_dir / EXCHANGED
        self._folder_text = str(self._folder)
        self._records = LimitRecords(state_dir)
        self._clock_ns = clock_ns
        self._lock = threading.Lock()  # of the open files
        self._open: dict[str, MappedLimits] = {}
        self._limits_lock = threading.Lock()  # of the records: limits change one at a time
        self._listeners: list[Callable[[], None]] = []

    def listen(self, wake: Callable[[], None]) -> None:
        """Have `wake` called whenever limits were given, changed or forgotten, on that thread."""
        self._listeners.append(wake)

    def _tell(self) -> None:
        for wake in self._listeners:
            wake()

    # --- LiveLimits

    def read(self, pod_uid: str, container: str) -> LimitsFile | None:
        """The limits as they are; None: no file of this layout. Raises NodeNotReady."""
        with self._at(pod_uid, container) as file:
            return file.now() if file else None

    def largest_bytes(self, pod_uid: str, container: str) -> Mapping[str, int] | None:
        """Memory limits by GPU, each the largest since this was asked last; 0: none.

        None: as in `read`. Who looks now and then misses none that held in between. Raises
        NodeNotReady.
        """
        with self._at(pod_uid, container) as file:
            return file.largest_bytes() if file else None

    def files_of(self, pod_uid: str, container: str) -> frozenset[FileId]:
        """The files that what runs in a container may have mounted: its own, and those before.

        Raises NodeNotReady.
        """
        name = directory_name(pod_uid, container)
        path = self._path(name)
        with refusing("look at the container's limits", path):
            before: frozenset[FileId] = frozenset()
            with contextlib.suppress(FileNotFoundError), self._opened(self._exchanged) as fd:
                before = exchanged_limits.ids_of(name, fd)
            with contextlib.suppress(FileNotFoundError):
                info = os.stat(path, follow_symlinks=False)  # noqa: PTH116 - a text, see there
                return before | {exchanged_limits.file_id(info)}
        return before

    def change(
        self, pod_uid: str, container: str, change: Callable[[LimitsFile], LimitsFile]
    ) -> LimitsFile | None:
        """Change lines in place, as LiveLimits says. Raises NodeNotReady."""
        with self._at(pod_uid, container) as file:
            if file is None:
                return None
            before = file.now()
            after = change(before)
            self._check(before, after)
            if limits_in(after) == limits_in(before):
                file.put(after)
                return after
        with self._limits_lock:
            record = self._records.read(pod_uid, container) or LimitRecord()
            limits = tuple(limits_in(after).values())
            return self._set(pod_uid, container, replace(record, limits=limits), change)

    def lease(self, pod_uid: str, container: str, leases: Mapping[int, Lease]) -> bool:
        """Write what is lent and blocked, as Leases says. Raises NodeNotReady."""
        file = self._still(f"{pod_uid}_{container}")
        if file is not None:
            with file.lock:
                if not file.closed:
                    return file.lease(leases, self._clock_ns())
        return self._lease_anew(pod_uid, container, leases)

    def _lease_anew(self, pod_uid: str, container: str, leases: Mapping[int, Lease]) -> bool:
        for _ in range(_EXCHANGED_TRIES):
            name = directory_name(pod_uid, container)
            with refusing("use the container's limits", self._path(name)):
                file = self._found(name)
            if file is None:
                break
            with file.lock:
                if not file.closed:
                    return file.lease(leases, self._clock_ns())
        return False

    # --- ChangedLimits

    def record(self, pod_uid: str, container: str) -> LimitRecord:
        """What was changed for a container. Raises NodeNotReady."""
        return self._records.read(pod_uid, container) or LimitRecord()

    def set_limits(self, pod_uid: str, container: str, record: LimitRecord) -> LimitsFile | None:
        """Let this hold from now on, across restarts; give what holds. Raises NodeNotReady.

        None: the container has no file, or none of this layout; nothing is changed then.
        """
        if self.read(pod_uid, container) is None:
            return None
        with self._limits_lock:
            return self._set(pod_uid, container, record, lambda now: now)

    def settle(self, pod_uid: str, container: str) -> None:
        """Make the file say what the record does, if there is one. Raises NodeNotReady."""
        with self._limits_lock:
            record = self._records.read(pod_uid, container)
            if record is not None:
                self._project(pod_uid, container, record, lambda now: now)
        self._tell()

    def changed(self) -> tuple[tuple[str, str], ...]:
        """Pod uid and container of all that have a record. Raises NodeNotReady."""
        return self._records.listed()

    def largest_ever(self, pod_uid: str, container: str) -> Mapping[str, int]:
        """Of a changed container's GPUs the largest memory limits that ever held; 0: none.

        GPUs of which that is not known are missing. Raises NodeNotReady.
        """
        return dict(self.record(pod_uid, container).largest)

    def forget(self, pod_uid: str, container: str) -> None:
        """Drop the record of a container that is gone. Raises NodeNotReady."""
        with self._limits_lock:
            self._records.forget(pod_uid, container)
        self._tell()

    def mend(self) -> int:
        """After a start, alone on the node: finish what was not finished; give how many files.

        Every file says what its record does, no line is half written, and no lease is from before
        the last boot. Never raises.
        """
        self._drop_all()
        for swept in (self._folder, self._records.folder):
            remove_unfinished(swept)
        mended = 0
        try:
            with self._opened(self._folder) as folder:
                with contextlib.suppress(FileNotFoundError), self._opened(self._exchanged) as fd:
                    exchanged_limits.mend(folder, fd)
                names = _containers(folder)
        except FileNotFoundError:
            return 0
        except (OSError, NodeNotReady) as error:
            log.failing("limits not mended", error=error)
            return 0
        for name in names:
            pod_uid, _, container = name.partition("_")
            try:
                if self._mend(pod_uid, container):
                    mended += 1
                    log.warning("limits mended", container=name)
            except NodeNotReady as error:
                log.failing("limits not mended", about=name, error=error)
        return mended

    # --- below

    def _check(self, before: LimitsFile, after: LimitsFile) -> None:
        if not changes_only_lines(before, after):
            raise ValueError("devices, region and policy of a limits file are not changed in place")

    def _set(
        self,
        pod_uid: str,
        container: str,
        record: LimitRecord,
        change: Callable[[LimitsFile], LimitsFile],
    ) -> LimitsFile | None:
        with self._at(pod_uid, container) as file:
            held = limits_in(file.now()) if file else {}
        record = record.having_held(held.values()).having_held(record.limits)
        self._records.write(pod_uid, container, record)
        wanted = self._project(pod_uid, container, record, change)
        self._tell()
        return wanted

    def _project(
        self,
        pod_uid: str,
        container: str,
        record: LimitRecord,
        change: Callable[[LimitsFile], LimitsFile],
    ) -> LimitsFile | None:
        """Write the record's limits and, by `change`, what is lent and blocked now."""
        limits = {limit.uuid: limit for limit in record.limits}
        for _ in range(_EXCHANGED_TRIES):
            with self._at(pod_uid, container) as file:
                if file is None:
                    return None
                wanted = with_limits(change(file.now()), limits)
                file.put(wanted)
            with self._at(pod_uid, container) as again:
                if again is file:  # an Allocate has not put another one in its place meanwhile
                    break
        self._sync(directory_name(pod_uid, container))
        return wanted

    def _mend(self, pod_uid: str, container: str) -> bool:
        with self._limits_lock:
            record = self._records.read(pod_uid, container) or LimitRecord()
            with self._at(pod_uid, container) as file:
                if file is None:
                    return False
                before = file.now()
                limits = {limit.uuid: limit for limit in record.limits}
                wanted = without_stale_leases(with_limits(before, limits), now_ns=self._clock_ns())
                if wanted == before and not file.half_written():
                    return False
                file.put(wanted)
        self._sync(directory_name(pod_uid, container))
        return True

    # --- open files

    @contextlib.contextmanager
    def _opened(self, path: Path) -> Iterator[int]:
        with opened_directory(path) as fd:
            check_ours(fd, path)
            yield fd

    @contextlib.contextmanager
    def _at(self, pod_uid: str, container: str) -> Iterator[MappedLimits | None]:
        """A container's file, locked; None: there is none, or it is none of this layout."""
        name = directory_name(pod_uid, container)
        for _ in range(_EXCHANGED_TRIES):
            with refusing("use the container's limits", self._path(name)):
                file = self._found(name)
            if file is None:
                break
            with file.lock:
                if not file.closed:  # by another thread, which has found that it was exchanged
                    yield file if file.fits() else None
                    return
        yield None

    def _path(self, name: str) -> str:
        """A text, because leases need it hundreds of times a second."""
        return f"{self._folder_text}/{name}"

    def _still(self, name: str) -> MappedLimits | None:
        """A file that is open, if its name still leads there. Quick: this is what leases need."""
        file = self._open.get(name)
        if file is None:
            return None
        try:
            info = os.stat(self._path(name), follow_symlinks=False)  # noqa: PTH116 - see there
        except OSError:
            return None
        return file if (info.st_dev, info.st_ino) == file.identity else None

    def _found(self, name: str) -> MappedLimits | None:
        try:
            info = os.stat(self._path(name), follow_symlinks=False)  # noqa: PTH116 - see there
        except FileNotFoundError:
            self._drop(name)
            return None
        with self._lock:
            known = self._open.get(name)
            if known is not None and known.identity == (info.st_dev, info.st_ino):
                return known
        self._drop(name)
        return self._map(name)

    def _map(self, name: str) -> MappedLimits | None:
        self._drop_gone()
        flags = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        with self._opened(self._folder) as folder:
            fd = os.open(name, flags, dir_fd=folder)
            try:
                info, named = os.fstat(fd), os.stat(name, dir_fd=folder, follow_symlinks=False)
                fits = stat.S_ISREG(info.st_mode) and info.st_size >= FILE_BYTES
                # What was linked here for a moment only has a single name again, which is not ours.
                ours = (named.st_dev, named.st_ino) == (info.st_dev, info.st_ino)
                ours = ours and named.st_nlink <= self._most_names and trusted_owner(info)
                if not fits or not ours:
                    return None
                file = MappedLimits(fd, info)
            except MalformedLimits:
                return None
            finally:
                os.close(fd)
        with self._lock:
            return self._open.setdefault(name, file)

    def _sync(self, name: str) -> None:
        """Have it on disk, so that it is right after a power cut before the agent looks.

        Not by msync, which would hold up all of the agent's threads. The record is on disk anyway.
        """
        with contextlib.suppress(OSError):
            fd = os.open(self._folder / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)

    def _drop(self, name: str) -> None:
        with self._lock:
            file = self._open.pop(name, None)
        if file is not None:
            file.close()

    def _drop_gone(self) -> None:
        """Whenever one is opened: containers come and go, and nobody asks for those that went."""
        with self._lock:
            names = tuple(self._open)
        for name in names:
            if not (self._folder / name).exists():
                self._drop(name)

    def _drop_all(self) -> None:
        with self._lock:
            names = tuple(self._open)
        for name in names:
            self._drop(name)


def _containers(folder: int) -> list[str]:
    return sorted(filter(is_directory_name, os.listdir(folder)))
