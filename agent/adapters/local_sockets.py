"""Unix sockets for whoever is on this node: where they are, who may connect, whose they are.

They lie in one directory, which only root and the agent can write. One agent at a time has it,
by a lock that the kernel releases when its owner ends: so a socket that is found there belongs to a
dead agent and is replaced, and that of a living one never is.
"""

import contextlib
import errno
import grp
import os
import socket
import stat
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from agent.adapters.instance_lock import InstanceLock, LockUnavailable
from agent.adapters.listeners import BACKLOG, EndpointUnavailable
from agent.adapters.local_client import CONTROL_SOCKET, READ_SOCKET
from agent.adapters.safe_files import (
    ensured_directory,
    opened_directory,
    set_socket_mode,
    trusted_owner,
)
from agent.boundaries import passed

DIRECTORY_MODE = 0o755
READ_MODE, CONTROL_MODE = 0o660, 0o600
_CREDENTIALS = struct.Struct("iII")  # pid, uid, gid: unix(7), SO_PEERCRED

_ADVICE = {
    errno.ELOOP: "it is a link, which is never followed here: remove the link",
    errno.ENOTDIR: "it is a link or a file where a directory belongs: remove it",
    errno.EROFS: "the file system is read-only: mount it writable, or choose another directory "
    "with --runtime-dir",
    errno.EACCES: "the agent may not do that: run it as root, or choose another directory with "
    "--runtime-dir",
    errno.EPERM: "the agent may not do that: run it as root, or choose another directory with "
    "--runtime-dir",
}


@dataclass(slots=True)
class RuntimeDirectory:
    """The directory of the sockets; ours as long as one of them is open."""

    path: Path
    _lock: InstanceLock = field(init=False)
    _inside: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._lock = InstanceLock(self.path, linked=False)

    @contextlib.contextmanager
    def entered(self, name: str) -> Iterator[int]:
        """A descriptor of the directory, made if it is missing, and locked until `left`.

        Raises EndpointUnavailable: it is not ours, or another agent has it.
        """
        with _explained(self.path):
            self.path.parent.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)
            with (
                opened_directory(self.path.parent.resolve()) as parent,
                ensured_directory(self.path.name, DIRECTORY_MODE, dir_fd=parent) as fd,
            ):
                _check_ours(fd, self.path)
                self._take()
                self._inside.add(name)
                try:
                    yield fd
                except BaseException:
                    self.left(name)
                    raise

    def left(self, name: str) -> None:
        """The socket of that name is gone."""
        self._inside.discard(name)
        if not self._inside:
            self._lock.release()

    def _take(self) -> None:
        try:
            if self._lock.try_acquire():
                return
        except LockUnavailable as error:
            raise EndpointUnavailable(str(error)) from error
        raise EndpointUnavailable(
            f"another agent has its sockets in {self.path} ({self._lock.holder()}); wait until it "
            "ends, or give one of the two another --runtime-dir"
        )


@dataclass(slots=True)
class UnixListener:
    """A socket in the runtime directory.

    `group`: the name or number of who may connect beside the owner, as far as `mode` lets them;
    empty: as it comes. With `owner_only`, who connects is looked at, too: a mode is soon changed.
    """

    directory: RuntimeDirectory
    name: str
    mode: int
    group: str = ""
    owner_only: bool = False
    _identity: tuple[int, int] | None = None

    @property
    def where(self) -> Mapping[str, object]:
        return {"socket": self.path}

    @property
    def path(self) -> Path:
        """Where it is, or would be."""
        return self.directory.path / self.name

    @property
    def bound(self) -> bool:
        """Whether it is listened at."""
        return self._identity is not None

    def open(self) -> socket.socket:
        group = _group_id(self.group)
        with self.directory.entered(self.name) as fd:
            _make_way(self.name, fd, self.path)
            return self._bound(fd, group)

    def _bound(self, directory: int, group: int) -> socket.socket:
        """Nobody can connect before `listen`, by which time the file has its owner and mode."""
        server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            os.fchmod(server.fileno(), self.mode)  # the file is made with it
            server.bind(f"/proc/self/fd/{directory}/{self.name}")  # fits sun_path, and no links
            if group >= 0:
                self._give_to(group, directory)
            set_socket_mode(self.name, self.mode, dir_fd=directory)  # umask took some away
            server.listen(BACKLOG)
            passed("local-socket-served")
            server.setblocking(False)
            info = os.stat(self.name, dir_fd=directory, follow_symlinks=False)
            self._identity = info.st_dev, info.st_ino
        except BaseException:
            server.close()
            raise
        return server

    def _give_to(self, group: int, directory: int) -> None:
        try:
            os.chown(self.name, -1, group, dir_fd=directory, follow_symlinks=False)
        except PermissionError as error:
            with contextlib.suppress(OSError):
                os.unlink(self.name, dir_fd=directory)
            raise EndpointUnavailable(
                f"{self.path} cannot be given to the group {self.group!r}: the agent may not do "
                "that; run it as root, or set --socket-group to a group of the agent's own"
            ) from error

    def lost(self) -> bool:
        return self._found() != self._identity

    def refusal(self, peer: socket.socket) -> str:
        if not self.owner_only:
            return ""
        try:
            _, uid = _credentials(peer)
        except OSError as error:
            return f"it is not known who connects ({error.strerror}), so nothing is changed"
        if uid in (0, os.geteuid()):
            return ""
        return f"user {uid} may change nothing here; do it as root"

    def peer(self, peer: socket.socket) -> str:
        """The kernel's word, of the moment at which they connected."""
        try:
            pid, uid = _credentials(peer)
        except OSError:
            return ""
        return f"uid {uid}, pid {pid}" if pid > 0 else f"uid {uid}"  # 0: not in our pid namespace

    def closed(self) -> None:
        if self._identity is not None and self._found() == self._identity:
            with contextlib.suppress(OSError):
                self.path.unlink()
                passed("local-socket-removed")
        self._identity = None
        self.directory.left(self.name)

    def _found(self) -> tuple[int, int] | None:
        try:
            info = self.path.lstat()
        except OSError:
            return None
        return info.st_dev, info.st_ino


def _credentials(peer: socket.socket) -> tuple[int, int]:
    """Process and user at the other end. Raises OSError."""
    raw = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _ = _CREDENTIALS.unpack(raw)
    return pid, uid


def read_listener(directory: RuntimeDirectory, group: str) -> UnixListener:
    """`read.sock`, for root and a group."""
    return UnixListener(directory, READ_SOCKET, READ_MODE, group=group)


def control_listener(directory: RuntimeDirectory) -> UnixListener:
    """`control.sock`, for root and the agent's own user."""
    return UnixListener(directory, CONTROL_SOCKET, CONTROL_MODE, owner_only=True)


def _group_id(group: str) -> int:
    """Its number; -1: none is named. Raises EndpointUnavailable."""
    if not group:
        return -1
    if group.isascii() and group.isdigit() and len(group) < 10:  # noqa: PLR2004 - fits gid_t
        return int(group)
    try:
        return grp.getgrnam(group).gr_gid
    except (KeyError, ValueError) as error:
        raise EndpointUnavailable(
            f"there is no group {group!r} here, to which the read-only socket should belong: make "
            f"it (`groupadd --system {group}`), or set --socket-group to another or to a number"
        ) from error


def _make_way(name: str, directory: int, path: Path) -> None:
    """Take away a dead agent's socket. Raises EndpointUnavailable for anything else there."""
    try:
        info = os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(info.st_mode):
        raise EndpointUnavailable(
            f"{path} is in the way: it is no socket, and was not made by this agent; look what it "
            "is and remove it"
        )
    os.unlink(name, dir_fd=directory)
    passed("local-socket-swept")


def _check_ours(fd: int, path: Path) -> None:
    info = os.fstat(fd)
    if not trusted_owner(info):
        raise EndpointUnavailable(
            f"the directory {path} belongs to user {info.st_uid}, who could put sockets of their "
            f"own in place of the agent's: remove it, or `chown root {path}`"
        )
    if stat.S_IMODE(info.st_mode) & 0o022:
        raise EndpointUnavailable(
            f"the directory {path} can be written by others, who could put sockets of their own in "
            f"place of the agent's: `chmod go-w {path}`"
        )


@contextlib.contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        advice = _ADVICE.get(error.errno or 0, error.strerror or type(error).__name__)
        raise EndpointUnavailable(f"there can be no local sockets in {path}: {advice}") from error
