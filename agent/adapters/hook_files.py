"""The hook's files in the host's directory: put there, looked at, deleted; never rewritten.

<host vgpu dir>/
    libvgpu.so.<version>-<digest>    ours; containers mount it, processes have it mapped
    libvgpu.so                       HAMi's name: a copy of ours, or HAMi's own
"""

import contextlib
import hashlib
import os
import stat
from collections.abc import Collection, Iterator
from pathlib import Path

from agent.adapters.proc_files import ENDED, READ, directories_of
from agent.adapters.safe_files import (
    check_ours,
    check_single,
    close_to_others,
    opened_directory,
    read_small,
    refusing,
    write_whole,
)
from agent.boundaries import passed
from agent.domain.hook_files import (
    LIBRARY,
    HookFile,
    hook_name,
    is_content_of,
    is_hook_name,
    is_unfinished_name,
    mapped_files,
)
from agent.domain.proc_text import place_of
from agent.errors import NodeNotReady
from agent.ports import HookListing

# Source: Linux, include/linux/proc_ns.h, PROC_PID_INIT_INO: who is in it sees every process.
FIRST_PID_NAMESPACE = "pid:[4026531836]"
MAX_LIBRARY_BYTES = 64 << 20
MAX_ENTRIES = 10_000
MAX_CGROUP_BYTES, PIECE_BYTES = 1 << 16, 1 << 16
MAPS_BYTES, ALL_MAPS_BYTES = 1 << 24, 1 << 29
MAX_SCANS, QUIET_SCANS = 50, 2


class _TooMuchError(Exception):
    """More than one round reads."""


# --- putting it there -----------------------------------------------------------------------------


def _renew(name: str, root: int) -> None:
    fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=root)
    try:
        check_single(fd, name, dir_fd=root)
        os.utime(fd)
    finally:
        os.close(fd)


def install_hook(source: Path, host_vgpu_dir: Path, version: str) -> Path:
    """Put the hook library where containers get it from; give the path of the host's file.

    The name has the version and a digest of the content, so an upgrade never touches a file that
    running containers have mapped. Calling it again changes nothing but the file's times, which say
    that some agent wants it. Raises NodeNotReady.
    """
    content = _library_content(source)
    name = hook_name(version, hashlib.sha256(content).hexdigest())
    with refusing("install the hook library", host_vgpu_dir):
        made = not host_vgpu_dir.exists()
        host_vgpu_dir.mkdir(0o755, parents=True, exist_ok=True)
        with opened_directory(host_vgpu_dir) as root:
            if made:
                os.fchmod(root, 0o750)
            check_ours(root, host_vgpu_dir)
            with contextlib.suppress(OSError):  # a read-only disk, or root's directory: doctor says
                close_to_others(root)
            if not is_file(name, root) or read_small(name, len(content), dir_fd=root) != content:
                write_whole(name, content, 0o755, dir_fd=root)
            else:
                with contextlib.suppress(OSError):  # a read-only disk: nothing is deleted there
                    _renew(name, root)
                    passed("hook-confirmed")
    return host_vgpu_dir / name


def _library_content(source: Path) -> bytes:
    with refusing("read the hook library", source), source.open("rb") as file:
        content = file.read(MAX_LIBRARY_BYTES + 1)
    if not content or len(content) > MAX_LIBRARY_BYTES:
        raise NodeNotReady(
            f"{source} has {len(content)} bytes and so is no hook library: install the agent again"
        )
    return content


def is_file(name: str, directory: int) -> bool:
    """Whether there is a file with something in it: a half-copied library is none."""
    try:
        info = os.stat(name, dir_fd=directory)
    except FileNotFoundError:
        return False
    return stat.S_ISREG(info.st_mode) and info.st_size > 0


def offer_plain_name(library: Path, *, replace: bool) -> None:
    """Have HAMi's name, `libvgpu.so`, beside an installed library: a copy, in a file of its own.

    No link, because HAMi's installer writes into the file it finds under a name, and containers
    have ours mapped. What is there and none of ours stays as it is unless `replace`; then, too, it
    is replaced and not rewritten. Raises NodeNotReady.
    """
    path = library.with_name(LIBRARY)
    if library == path:
        return
    with refusing("copy the hook library", path), opened_directory(library.parent) as root:
        check_ours(root, library.parent)
        content = read_small(library.name, MAX_LIBRARY_BYTES, dir_fd=root)
        if content is None:
            raise NodeNotReady(f"{library} is no file: remove it, the agent installs it again")
        try:
            there = read_small(LIBRARY, MAX_LIBRARY_BYTES, dir_fd=root)
        except FileNotFoundError:
            there = b""
        except OSError:  # a link: somebody's own
            there = None
        if there == content:
            return
        if replace or there == b"" or (there is not None and _is_ours(there, root)):
            write_whole(LIBRARY, content, 0o755, dir_fd=root)


def _is_ours(content: bytes, root: int) -> bool:
    """Whether some agent has installed it: files of ours go only after the copy was renewed."""
    digest = hashlib.sha256(content).hexdigest()
    with os.scandir(root) as entries:
        return any(is_content_of(entry.name, digest) for entry in entries)


# --- what is there --------------------------------------------------------------------------------


class HostHookFiles:
    """Implements `ports.InstalledHooks` in one directory of the host. Keeps no state."""

    def __init__(self, host_vgpu_dir: Path, proc: Path) -> None:
        """`proc`: a /proc that shows the processes of the host."""
        self._root = host_vgpu_dir
        self._proc = proc

    @contextlib.contextmanager
    def _opened(self) -> Iterator[int]:
        with opened_directory(self._root) as fd:
            check_ours(fd, self._root)
            yield fd

    def listed(self) -> HookListing:
        """See `ports.InstalledHooks.listed`. Raises NodeNotReady."""
        files, unfinished, linked = [], [], set()
        with (
            refusing("list the hook's files", self._root),
            self._opened() as root,
            os.scandir(root) as entries,
        ):
            for number, entry in enumerate(entries):
                if number >= MAX_ENTRIES:
                    raise NodeNotReady(
                        f"{self._root} has more than {MAX_ENTRIES} entries, so none of the hook's "
                        "files is deleted: remove what does not belong there"
                    )
                if entry.is_symlink():
                    linked.add(Path(os.readlink(entry.name, dir_fd=root)).name)
                elif entry.is_file(follow_symlinks=False):
                    if is_hook_name(entry.name):
                        files.append(_hook_file(entry.name, entry.stat(follow_symlinks=False)))
                    elif is_unfinished_name(entry.name):
                        unfinished.append(_hook_file(entry.name, entry.stat(follow_symlinks=False)))
        return HookListing(tuple(files), tuple(unfinished), frozenset(linked))

    def delete(self, file: HookFile) -> None:
        """See `ports.InstalledHooks.delete`. Raises NodeNotReady."""
        if not (is_hook_name(file.name) or is_unfinished_name(file.name)):
            raise NodeNotReady(f"{file.name!a} is no file of the hook's and is not deleted")
        with (
            refusing("delete a file of the hook", self._root / file.name),
            self._opened() as root,
            contextlib.suppress(FileNotFoundError),
        ):
            if _hook_file(file.name, os.lstat(file.name, dir_fd=root)) == file:
                os.unlink(file.name, dir_fd=root)
                passed("hook-deleted")

    # --- who has it mapped

    def mapped(self, files: Collection[HookFile]) -> frozenset[str] | None:
        """See `ports.InstalledHooks.mapped`. Never raises.

        A process may end before it is read and have left a child that is not in the list, so it is
        listed again until nobody is new.
        """
        seen: set[str] = set()
        found: set[str] = set()
        left, quiet = ALL_MAPS_BYTES, 0
        try:
            for _ in range(MAX_SCANS):
                new = self._pids() - seen
                if not seen and not self._sees_all(new):
                    return None
                seen |= new
                quiet = 0 if new else quiet + 1
                for pid in new:
                    names, read = _mapped_by(f"{self._proc}/{pid}", files)
                    found |= names
                    left -= read
                    if left < 0:
                        return None
                if quiet == QUIET_SCANS:
                    return frozenset(found)
        except (OSError, _TooMuchError):
            return None
        return frozenset(found) if len(found) == len(files) else None

    def _pids(self) -> set[str]:
        with os.scandir(self._proc) as entries:
            return {e.name for e in entries if e.name.isascii() and e.name.isdigit()}

    def _sees_all(self, pids: Collection[str]) -> bool:
        """Whether this /proc shows the host's processes, and not one container's.

        Process 1 says so where we may look at it; else that another pod's process can be seen.
        """
        with contextlib.suppress(OSError):
            if str((self._proc / "1/ns/pid").readlink()) == FIRST_PID_NAMESPACE:
                return True
        own = self._pod_of("self")
        return any(pod not in ("", own) for pod in map(self._pod_of, pids))

    def _pod_of(self, pid: str) -> str:
        """The uid of its pod; empty: in none, or it has ended."""
        try:
            fd = os.open(f"{self._proc}/{pid}/cgroup", READ)
            try:
                place = place_of(os.read(fd, MAX_CGROUP_BYTES).decode("ascii", "replace"))
            finally:
                os.close(fd)
        except OSError:
            return ""
        return place.pod_uid if place else ""


def _hook_file(name: str, info: os.stat_result) -> HookFile:
    return HookFile(name, info.st_dev, info.st_ino, info.st_ctime)


def _mapped_by(entry: str, files: Collection[HookFile]) -> tuple[frozenset[str], int]:
    """Which of the files a process has mapped, and how many bytes were read to tell.

    Raises OSError when it may not be looked at, _TooMuchError when it has more than is read.
    """
    for directory in directories_of(entry):
        found, size = _in_maps(f"{directory}/maps", files)
        if size:
            return found, size
    return frozenset(), 0


def _in_maps(path: str, files: Collection[HookFile]) -> tuple[frozenset[str], int]:
    found: frozenset[str] = frozenset()
    rest, size = b"", 0
    try:
        fd = os.open(path, READ)
    except ENDED:
        return found, 0
    try:
        while piece := os.read(fd, PIECE_BYTES):
            size += len(piece)
            if size > MAPS_BYTES:
                raise _TooMuchError
            lines, _, rest = (rest + piece).rpartition(b"\n")
            found |= mapped_files(lines, files)
    except ProcessLookupError:  # it has ended meanwhile
        return found, size
    finally:
        os.close(fd)
    return found | mapped_files(rest, files), size
