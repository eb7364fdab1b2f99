"""The host's side of a container's mounts: cache directories, hook library, preload file, lock.

<host vgpu dir>/                     root's, 0750: no user of the host gets to what containers leave
    libvgpu.so.<version>-<digest>    the hook (hook_files.py)
    ld.so.preload                    one line: where containers see the hook
    limits/                          root's, 0755
        <pod uid>_<container>        root's, 0644: mounted read-only
    exchanged/                       those that another one took the place of (exchanged_limits.py)
    containers/                      root's, 0755
        <pod uid>_<container>/       0777: containers run as any user; only this one sees it
            <uuid>.cache             0666: its usage region
<lock dir>/                          1777, shared by all containers: HAMi-core's contract
"""

import contextlib
import os
import re
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

from agent.adapters.exchanged_limits import forget, put_by
from agent.adapters.hook_files import is_file
from agent.adapters.safe_files import (
    check_ours,
    ensured_directory,
    only_we_make,
    opened_directory,
    read_small,
    refusing,
    remove_tree,
    replace_whole,
    trusted_owner,
    write_all,
    write_whole,
)
from agent.boundaries import passed
from agent.domain.hook_files import LIBRARY
from agent.domain.identities import directory_of
from agent.domain.limit_lines import fixed_part
from agent.domain.new_region import HEAD, TAIL_HEAD_BYTES, Piece, SeenRegion
from agent.domain.region import FILE_BYTES, TAIL_OFFSET
from agent.errors import NodeNotReady
from agent.ports import CacheDir, HookFiles

CONTAINERS, LIMITS, EXCHANGED = "containers", "limits", "exchanged"
PRELOAD, LICENSE, VALIDATOR = "ld.so.preload", "license", "vgpuvalidator"
COMMON_DEVICE_NODES = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools",
                       "/dev/nvidia-modeset")  # fmt: skip
OPEN_TO_ALL, SHARED, OPEN_FILE = 0o777, 0o1777, 0o666
MAX_LIMITS_BYTES = 1 << 16

_SHOWN_CHARS = 80
_POD_UID = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,62}", re.ASCII)
_CONTAINER = re.compile(r"[a-z0-9][a-z0-9.-]{0,62}", re.ASCII)


def _shown(name: str) -> str:
    return ascii(name if len(name) <= _SHOWN_CHARS else name[:_SHOWN_CHARS] + "...")


def directory_name(pod_uid: str, container: str) -> str:
    """`<pod uid>_<container>`. Raises NodeNotReady for what no API server would let through."""
    if not _POD_UID.fullmatch(pod_uid) or not _CONTAINER.fullmatch(container):
        raise NodeNotReady(
            f"the pod's uid {_shown(pod_uid)} or its container's name {_shown(container)} cannot "
            "be the name of a directory; use letters, digits and dashes"
        )
    return directory_of(pod_uid, container)


def is_directory_name(name: str) -> bool:
    """Whether a directory's name has the form that `directory_name` gives."""
    uid, separator, container = name.partition("_")
    return bool(separator and _POD_UID.fullmatch(uid) and _CONTAINER.fullmatch(container))


class HostCaches:
    """Implements `Caches` below one directory of the host. Thread-safe: it keeps no state."""

    def __init__(
        self,
        host_vgpu_dir: Path,
        *,
        lock_dir: Path,
        hook_library: str = "/usr/local/vgpu/libvgpu.so",
        versioned_library: str = "",
        dev_root: Path = Path("/"),
    ) -> None:
        """`hook_library`: where containers see the hook.

        `versioned_library`: its file name on the host, as `install_hook` gave it; without that file
        (or without a name) it is `libvgpu.so`.
        """
        self._root = host_vgpu_dir
        self._lock_dir = lock_dir
        self._hook_library = hook_library
        self._versioned_library = versioned_library
        self._dev_root = dev_root

    # --- directories of containers

    @contextlib.contextmanager
    def _opened_root(self) -> Iterator[int]:
        with opened_directory(self._root) as fd:
            check_ours(fd, self._root)
            yield fd

    @contextlib.contextmanager
    def _ensured(self, name: str) -> Iterator[int]:
        """A directory of ours below the root, made if it is missing."""
        with self._opened_root() as root, ensured_directory(name, 0o755, dir_fd=root) as fd:
            check_ours(fd, self._root / name)
            yield fd

    @contextlib.contextmanager
    def _opened(self, name: str) -> Iterator[int]:
        """The same as it is: on a full disk, too, what is there can be listed and deleted."""
        with self._opened_root() as root, opened_directory(name, dir_fd=root) as fd:
            check_ours(fd, self._root / name)
            yield fd

    def create(self, pod_uid: str, container: str) -> Path:
        """Make (or find again) the directory of a container. Raises NodeNotReady."""
        name = directory_name(pod_uid, container)
        path = self._root / CONTAINERS / name
        with (
            refusing("make the container's directory", path),
            self._ensured(CONTAINERS) as parent,
            ensured_directory(name, OPEN_TO_ALL, dir_fd=parent) as fd,
        ):
            self._open_to_all(fd, path, OPEN_TO_ALL)
        return path

    def _open_to_all(self, fd: int, path: Path, mode: int) -> None:
        """Bring a directory of ours to its mode; the name plays no part any more."""
        info = os.fstat(fd)
        if not trusted_owner(info):
            raise NodeNotReady(
                f"the directory {path} belongs to user {info.st_uid} and not to the agent, so "
                "somebody else has made or taken it: remove it"
            )
        if stat.S_IMODE(info.st_mode) != mode:
            os.fchmod(fd, mode)
            passed("directory-mended")

    def write_limits(self, pod_uid: str, container: str, content: bytes) -> Path:
        """Write a container's limits unless they are there; give the file. Raises NodeNotReady.

        A file that differs in what changes while the container runs (live_limits.py) is its own and
        stays. Another one is replaced, not rewritten: the container that has it mounted goes on
        with what it was given.
        """
        name = directory_name(pod_uid, container)
        path = self._root / LIMITS / name
        with refusing("write the container's limits", path), self._ensured(LIMITS) as fd:
            with contextlib.suppress(FileNotFoundError):
                there = read_small(name, MAX_LIMITS_BYTES, dir_fd=fd)
                if there is not None and fixed_part(there) == fixed_part(content):
                    return path
            with put_by(name, folder=fd, beside=lambda: self._ensured(EXCHANGED)):
                write_whole(name, content, 0o644, dir_fd=fd)
        return path

    def read_limits(self, pod_uid: str, container: str) -> bytes:
        """A container's limits as they were written; empty when never. Raises NodeNotReady."""
        name = directory_name(pod_uid, container)
        with (
            refusing("read the container's limits", self._root / LIMITS / name),
            contextlib.suppress(FileNotFoundError),
            self._opened(LIMITS) as fd,
        ):
            return read_small(name, MAX_LIMITS_BYTES, dir_fd=fd) or b""
        return b""

    # --- usage regions: a container can do what it likes with its own

    @contextlib.contextmanager
    def _container(self, pod_uid: str, container: str, what: str, file: str) -> Iterator[int]:
        name = directory_name(pod_uid, container)
        with (
            refusing(what, self._root / CONTAINERS / name / file),
            self._opened(CONTAINERS) as parent,
            opened_directory(name, dir_fd=parent) as fd,
        ):
            yield fd

    def seen_region(self, pod_uid: str, container: str, name: str) -> SeenRegion | None:
        """What has this name in the container's directory. Raises NodeNotReady.

        It is read, never mapped: who cuts a mapped file short ends its readers.
        """
        with self._container(pod_uid, container, "look at the usage region", name) as fd:
            try:
                info = os.stat(name, dir_fd=fd, follow_symlinks=False)
                if not stat.S_ISREG(info.st_mode):
                    return SeenRegion(inode=info.st_ino)
                flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
                region = os.open(name, flags, dir_fd=fd)
            except FileNotFoundError:
                return None
            try:
                return SeenRegion(
                    inode=os.fstat(region).st_ino,
                    head=os.pread(region, HEAD.size, 0),
                    tail=os.pread(region, TAIL_HEAD_BYTES, TAIL_OFFSET),
                )
            finally:
                os.close(region)

    def make_region(self, pod_uid: str, container: str, name: str, pieces: Sequence[Piece]) -> int:
        """Put a usage region there, whole and on disk; give its inode. Raises NodeNotReady."""
        with self._container(pod_uid, container, "make the usage region", name) as fd:
            return replace_whole(name, lambda file: _fill(file, pieces), OPEN_FILE, dir_fd=fd)

    # --- the end of a container

    def discard(self, name: str) -> None:
        """Delete a directory of ours, what is in it, and its limits. Raises NodeNotReady."""
        if not is_directory_name(name):
            raise NodeNotReady(f"{_shown(name)} is no container's directory and is not deleted")
        problems = []
        for parent in (CONTAINERS, LIMITS, EXCHANGED):  # whatever is wrong with one, others go
            try:
                self._discard(parent, name)
            except NodeNotReady as error:
                problems.append(error)
        if problems:
            raise problems[0]

    def _discard(self, parent: str, name: str) -> None:
        path = self._root / parent / name
        with (
            refusing("delete what was made for a container", path),
            contextlib.suppress(FileNotFoundError),
            self._opened(parent) as fd,
        ):
            if parent == EXCHANGED:
                forget(name, fd)
            elif not remove_tree(name, dir_fd=fd):
                raise NodeNotReady(
                    f"{path} has more entries than are deleted at once; the next pass goes on"
                )

    def listed(self) -> tuple[CacheDir, ...]:
        """All directories of containers. Raises NodeNotReady.

        Their age is told by ctime: a tenant can set the other times at will.
        """
        found: dict[str, CacheDir] = {}
        for parent in (EXCHANGED, LIMITS):
            with contextlib.suppress(NodeNotReady):  # said by whoever writes or deletes limits
                found |= {directory.name: directory for directory in self._entries(parent)}
        found |= {directory.name: directory for directory in self._entries(CONTAINERS)}
        return tuple(found.values())

    def _entries(self, parent: str) -> Iterator[CacheDir]:
        with (
            refusing("list the containers' directories", self._root / parent),
            contextlib.suppress(FileNotFoundError),
            self._opened(parent) as fd,
            os.scandir(fd) as entries,
        ):
            for entry in entries:
                name = entry.name.rpartition(".")[0] if parent == EXCHANGED else entry.name
                wanted = entry.is_dir if parent == CONTAINERS else entry.is_file
                if is_directory_name(name) and wanted(follow_symlinks=False):
                    yield CacheDir(name, entry.stat(follow_symlinks=False).st_ctime)

    # --- what all containers share

    def prepare(self) -> HookFiles:
        """Make what all containers share and say which files there are. Raises NodeNotReady."""
        with refusing("use the hook's files", self._root), self._opened_root() as root:
            library = self._library(root)
            self._write_preload(root)
            licensed = is_file(LICENSE, root)
        self._prepare_lock_dir()
        return HookFiles(
            library=library,
            preload=self._root / PRELOAD,
            lock_dir=self._lock_dir,
            license=self._root / LICENSE if licensed else None,
            validator=self._root / VALIDATOR if licensed else None,  # HAMi does not look for it
            device_nodes=tuple(
                path for path in COMMON_DEVICE_NODES if (self._dev_root / path[1:]).exists()
            ),
        )

    def _library(self, root: int) -> Path:
        for name in (self._versioned_library, LIBRARY):
            if name and is_file(name, root):
                return self._root / name
        raise NodeNotReady(
            f"the node has no {self._root / LIBRARY}, without which limits are not kept: let the "
            "agent install its hook library, or copy it there"
        )

    def _write_preload(self, root: int) -> None:
        wanted = self._hook_library.encode()
        try:
            now = read_small(PRELOAD, 4096, dir_fd=root)
        except FileNotFoundError:
            now = None
        if now is None or now.strip() != wanted:
            write_whole(PRELOAD, wanted + b"\n", 0o644, dir_fd=root)

    def _prepare_lock_dir(self) -> None:
        path = self._lock_dir
        parent = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC  # /tmp may be a link of the admin's
        with refusing("make the lock directory", path):
            fd = os.open(path.parent, parent)
            try:
                with ensured_directory(path.name, SHARED, dir_fd=fd) as own:
                    if only_we_make(os.fstat(fd)):
                        _take_back(own)
                    else:
                        self._open_to_all(own, path, SHARED)
            finally:
                os.close(fd)


def _take_back(directory: int) -> None:
    """Open the lock directory again; by its place it is ours, whatever its owner.

    Every container may write to it, and root of one may own and close it. Refused, it would keep
    all pods of the node from starting.
    """
    with contextlib.suppress(PermissionError):  # a pod without CHOWN: the owner plays no part
        os.fchown(directory, os.geteuid(), -1)
    if stat.S_IMODE(os.fstat(directory).st_mode) != SHARED:
        os.fchmod(directory, SHARED)
    passed("directory-taken-back")


def _fill(file: int, pieces: Sequence[Piece]) -> None:
    """Real blocks for all of it: a disk that is full later must not end who writes by SIGBUS."""
    os.posix_fallocate(file, 0, FILE_BYTES)
    passed("region-allocated")
    for piece in pieces:
        os.lseek(file, piece.offset, os.SEEK_SET)
        write_all(file, piece.content)
