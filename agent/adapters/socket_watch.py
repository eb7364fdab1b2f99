"""Watching kubelet's socket: a look costs one `stat`, and inotify says when to look early.

inotify goes silent when the directory is renamed, or deleted and made anew, and there may be no
inotify instance left for us at all (EMFILE). So whoever uses this polls by `look()`, each second or
so, and each look arms inotify again where needed.
"""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from agent import logs
from agent.adapters.kubelet import SOCKET_PREFIX
from agent.domain.registration import SocketIdentity

log = logs.get(__name__)

REARM_EVERY_S = 60.0  # after inotify could not be had
UNKNOWN = SocketIdentity(0, 0, 0)  # something is there, but it cannot be looked at


class SocketWatch:
    """Looks at one socket (`ports.SocketWatch`)."""

    def __init__(
        self, kubelet_socket: Path, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._socket = kubelet_socket
        self._directory = kubelet_socket.parent
        self._clock = clock
        self._wake: Callable[[], None] | None = None
        self._observer: Any = None
        self._armed_on: tuple[int, int] | None = None
        self._seen: SocketIdentity | None = None
        self._rearm_at_s = 0.0

    def start(self, wake: Callable[[], None]) -> None:
        """See `ports.SocketWatch.start`."""
        self._wake = wake
        self._arm()

    def look(self) -> SocketIdentity | None:
        """See `ports.SocketWatch.look`."""
        seen = self._identity()
        if seen is None or seen != self._seen or seen is UNKNOWN or self._armed_on is None:
            # Only then can the directory be another one.
            self._arm()
            seen = self._identity()  # what came before inotify listened
        self._seen = seen
        return seen

    def absence(self) -> str:
        """See `ports.SocketWatch.absence`."""
        nor = "" if self._directory_now() else f", nor the directory {self._directory}"
        return (
            f"there is no {self._socket}{nor}; start kubelet, or, where its socket lies elsewhere, "
            "set --kubelet-socket to that and, for an agent in a pod, mount its directory"
        )

    def _identity(self) -> SocketIdentity | None:
        try:
            status = os.lstat(self._socket)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            log.failing("kubelet socket unreadable", about=str(self._socket), error=error)
            return UNKNOWN
        return SocketIdentity(status.st_dev, status.st_ino, status.st_ctime_ns)

    def stop(self) -> None:
        """See `ports.SocketWatch.stop`."""
        self._wake = None
        self._disarm()

    # --- inotify ---------------------------------------------------------------------------

    def _arm(self) -> None:
        """Watch the directory that has the name now, if it is another one than before."""
        if self._wake is None:
            return
        directory = self._directory_now()
        if directory == self._armed_on:
            return
        if self._armed_on is not None:
            self._disarm()
        if directory is None or self._clock() < self._rearm_at_s:
            return
        try:
            self._observer = _observe(self._directory, self._socket.name, self._wake)
        except OSError as error:
            self._rearm_at_s = self._clock() + REARM_EVERY_S
            log.failing("inotify unavailable", about=str(self._directory), error=error)
            return
        self._armed_on = directory
        log.recovered("inotify unavailable", about=str(self._directory))

    def _directory_now(self) -> tuple[int, int] | None:
        try:
            status = self._directory.stat()
        except OSError:
            return None
        return status.st_dev, status.st_ino

    def _disarm(self) -> None:
        observer, self._observer, self._armed_on = self._observer, None, None
        if observer is not None:
            observer.stop()
            observer.join(timeout=1.0)


def _observe(directory: Path, socket_name: str, wake: Callable[[], None]) -> Any:
    """Start an inotify observer. Raises OSError, e.g. EMFILE."""
    from watchdog.events import FileSystemEvent, FileSystemEventHandler
    from watchdog.observers.inotify import InotifyObserver

    class Wake(FileSystemEventHandler):
        """Kubelet rewrites its checkpoint in there all the time: only sockets count."""

        def on_any_event(self, event: FileSystemEvent) -> None:
            if event.event_type not in ("created", "deleted", "moved"):
                return
            names = {Path(os.fsdecode(p)).name for p in (event.src_path, event.dest_path)}
            if socket_name in names or any(name.startswith(SOCKET_PREFIX) for name in names):
                wake()

    observer = InotifyObserver()
    observer.schedule(Wake(), str(directory), recursive=False)
    try:
        observer.start()
    except OSError:
        observer.unschedule_all()
        raise
    return observer
