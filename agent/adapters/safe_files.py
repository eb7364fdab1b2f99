"""Files and directories of the host, made, written and deleted without being led astray.

Everything goes through directory descriptors and never follows a link: whoever can write next to
us must not be able to turn our next system call against another file. Errors become `NodeNotReady`
with a sentence that says what an administrator must do.
"""

import contextlib
import errno
import os
import re
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

from agent.boundaries import passed
from agent.errors import NodeNotReady

DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
CLOSED, OTHERS = 0o700, 0o007
ENTRIES_PER_PASS = 200_000  # bounds the time that one deletion takes
_UNFINISHED = re.compile(r"\..+\.\d+\.[0-9a-f]{8}")  # see replace_whole

_ADVICE = {
    errno.ENOSPC: "the disk is full: free some space on the node",
    errno.EDQUOT: "the disk quota is used up: raise it or free some space on the node",
    errno.EROFS: "the file system is read-only: repair or remount it",
    errno.EIO: "the disk reports errors: replace it",
    errno.ELOOP: "it is a link, which is never followed here: remove the link",
    errno.ENOTDIR: "it is a link or a file where a directory belongs: remove it",
    errno.ENOENT: "it is missing: create it, or install the agent's files again",
    errno.EACCES: "the agent may not do that: run it as root or correct the permissions",
    errno.EPERM: "the agent may not do that: run it as root or correct the permissions",
    errno.EMLINK: "it is no plain file with a single name, which is never written to: remove it",
    errno.EBUSY: "something is mounted there: unmount it",
}


@contextlib.contextmanager
def refusing(what: str, path: Path | str) -> Iterator[None]:
    """Turn an OSError inside into NodeNotReady: what could not be done, where, why, what to do."""
    try:
        yield
    except OSError as error:
        advice = _ADVICE.get(error.errno or 0, error.strerror or type(error).__name__)
        raise NodeNotReady(f"the node cannot {what} at {path}: {advice}") from error


def trusted_owner(info: os.stat_result) -> bool:
    """Whether a file belongs to root or to the agent itself."""
    return info.st_uid in (0, os.geteuid())


@contextlib.contextmanager
def opened_directory(path: Path | str, *, dir_fd: int | None = None) -> Iterator[int]:
    """A descriptor of a directory that is none of a link's doing. Raises OSError."""
    fd = os.open(path, DIRECTORY, dir_fd=dir_fd)
    try:
        yield fd
    finally:
        os.close(fd)


def check_ours(fd: int, path: Path) -> None:
    """Raise NodeNotReady unless only root and the agent can put something into the directory."""
    info = os.fstat(fd)
    if not trusted_owner(info):
        raise NodeNotReady(
            f"the directory {path} belongs to user {info.st_uid}, who could exchange what "
            f"containers are given: remove it, or `chown root {path}`"
        )
    if stat.S_IMODE(info.st_mode) & 0o022:
        raise NodeNotReady(
            f"the directory {path} can be written by others, who could exchange what containers "
            f"are given: `chmod go-w {path}`"
        )


def close_to_others(fd: int) -> None:
    """Let no other user of the host into a directory below which containers write.

    Root of a container can make set-uid programs of root's there, and nodes of any device: on the
    host whoever gets to them has them. Raises OSError.
    """
    mode = stat.S_IMODE(os.fstat(fd).st_mode)
    if mode & OTHERS:
        os.fchmod(fd, mode & ~OTHERS)
        passed("directory-closed")


def only_we_make(info: os.stat_result) -> bool:
    """Whether only root and the agent can put something into the directory."""
    return trusted_owner(info) and not stat.S_IMODE(info.st_mode) & 0o022


@contextlib.contextmanager
def ensured_directory(name: str, mode: int, *, dir_fd: int) -> Iterator[int]:
    """A descriptor of a sub-directory, made with exactly this mode if it was missing.

    It is made closed (0700) and opened up by its descriptor: its name is never trusted twice. One
    that is still closed was left by a crash in between, and is opened up now. Raises OSError; a
    directory made here does not stay behind then.
    """
    made = False
    with contextlib.suppress(FileExistsError):
        os.mkdir(name, CLOSED, dir_fd=dir_fd)
        passed("directory-made")
        made = True
    try:
        with opened_directory(name, dir_fd=dir_fd) as fd:
            if made or _left_closed(fd):
                os.fchmod(fd, mode)
                passed("directory-opened")
            yield fd
    except BaseException:
        if made:
            with contextlib.suppress(OSError):
                os.rmdir(name, dir_fd=dir_fd)
        raise


def _left_closed(fd: int) -> bool:
    """Whether a directory of ours is as a crash leaves it that comes before it is opened up."""
    info = os.fstat(fd)
    return info.st_uid == os.geteuid() and info.st_mode & 0o777 == CLOSED


def check_single(fd: int, name: str, *, dir_fd: int) -> None:
    """Raise OSError unless an open file is a plain one to which this name leads, and no other.

    Whatever is written in place could otherwise be written into somebody else's file: one that was
    linked here for a moment has a single name again, which is not this one.
    """
    info = os.fstat(fd)
    for _ in range(
        2
    ):  # the kernel finds by name, then counts: one that went in between is gone now
        named = os.stat(name, dir_fd=dir_fd, follow_symlinks=False)
        here = (named.st_dev, named.st_ino, named.st_nlink)
        if not stat.S_ISREG(info.st_mode) or here != (info.st_dev, info.st_ino, 1):
            raise OSError(errno.EMLINK, "it is no plain file with a single name")


def set_socket_mode(name: Path | str, mode: int, *, dir_fd: int | None = None) -> None:
    """Give a socket its mode, and nothing that was put in its place. Raises OSError."""
    fd = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=dir_fd)
    try:
        if not stat.S_ISSOCK(os.fstat(fd).st_mode):
            raise OSError(errno.ENOTSOCK, "something else was put in the place of the socket")
        os.chmod(f"/proc/self/fd/{fd}", mode)  # noqa: PTH101 - a descriptor, not a path
    finally:
        os.close(fd)


def write_whole(name: str, content: bytes, mode: int, *, dir_fd: int, flush: bool = True) -> None:
    """Replace a file at once: readers see the old one or the new one, also after a power cut.

    Not after that without `flush`, but after any crash of ours. Raises OSError; nothing of a failed
    try stays behind.
    """
    replace_whole(name, lambda fd: write_all(fd, content), mode, dir_fd=dir_fd, flush=flush)


def replace_whole(
    name: str, fill: Callable[[int], None], mode: int, *, dir_fd: int, flush: bool = True
) -> int:
    """The same for what is not simply written from its start; give the new file's inode."""
    temporary = f".{name}.{os.getpid()}.{os.urandom(4).hex()}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(temporary, flags, 0o600, dir_fd=dir_fd)
    passed("file-created")
    try:
        try:
            fill(fd)
            passed("file-filled")
            os.fchmod(fd, mode)
            if flush:
                os.fsync(fd)
                passed("file-synced")
            inode = os.fstat(fd).st_ino
        finally:
            os.close(fd)
        os.rename(temporary, name, src_dir_fd=dir_fd, dst_dir_fd=dir_fd)
        passed("file-renamed")
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary, dir_fd=dir_fd)
        raise
    if flush:
        os.fsync(dir_fd)
        passed("folder-synced")
    return inode


def remove_unfinished(folder: Path) -> None:
    """Take away what an agent that was killed did not rename.

    For whoever is the only one to write there. Never raises: it is tried again at the next start.
    """
    with contextlib.suppress(OSError), opened_directory(folder) as fd:
        for name in os.listdir(fd):  # noqa: PTH208 - of a descriptor
            if _UNFINISHED.fullmatch(name):
                with contextlib.suppress(OSError):
                    os.unlink(name, dir_fd=fd)
                    passed("unfinished-deleted")


def write_all(fd: int, content: bytes) -> None:
    """Write everything, however little the kernel takes at once. Raises OSError."""
    left = memoryview(content)
    while left:
        left = left[os.write(fd, left) :]


def read_small(name: str, limit_bytes: int, *, dir_fd: int) -> bytes | None:
    """The content of a regular file of at most `limit_bytes`, else None. Raises OSError."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    fd = os.open(name, flags, dir_fd=dir_fd)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return None
        content = b""
        while len(content) <= limit_bytes and (piece := os.read(fd, limit_bytes + 1)):
            content += piece
        return content if len(content) <= limit_bytes else None
    finally:
        os.close(fd)


# --- deletion ------------------------------------------------------------------------------------


def _mount_id(fd: int) -> str:
    """Which mount an open directory is on: tells a bind mount of the same file system apart."""
    try:
        lines = Path(f"/proc/self/fdinfo/{fd}").read_text().splitlines()
    except OSError:
        return str(os.fstat(fd).st_dev)
    return next((line for line in lines if line.startswith("mnt_id:")), "")


class _Deletion:
    """Empties one directory without recursion: what lies deeper is first moved up into it.

    So two descriptors are enough for a tree of any depth, and a path never gets too long. Mount
    points cannot be moved and are left alone.
    """

    def __init__(self, top: int, entries: int) -> None:
        self._top = top
        self._mount = _mount_id(top)
        self._left = entries
        self._moved = 0

    def run(self) -> bool:
        """Delete until nothing is left, nothing more can be deleted or the pass is over."""
        while self._left > 0:
            before = self._left
            with os.scandir(self._top) as entries:
                for entry in entries:
                    self._delete(entry.name)
                    if self._left <= 0:
                        return False
            if self._left == before:
                return True
        return False

    def _delete(self, name: str) -> None:
        try:
            os.unlink(name, dir_fd=self._top)
        except IsADirectoryError:
            self._delete_directory(name)
        except OSError:
            return
        else:
            passed("entry-deleted")
            self._left -= 1

    def _delete_directory(self, name: str) -> None:
        with contextlib.suppress(OSError):
            os.rmdir(name, dir_fd=self._top)
            self._left -= 1
            return
        with contextlib.suppress(OSError), opened_directory(name, dir_fd=self._top) as fd:
            if _mount_id(fd) != self._mount:
                return
            with os.scandir(fd) as entries:
                for entry in entries:
                    if self._left <= 0:
                        return
                    self._delete_or_move_up(entry.name, fd)
            os.rmdir(name, dir_fd=self._top)
            self._left -= 1

    def _delete_or_move_up(self, name: str, directory: int) -> None:
        try:
            os.unlink(name, dir_fd=directory)
        except IsADirectoryError:
            self._moved += 1
            unused = f".{self._moved}-{os.urandom(8).hex()}"
            with contextlib.suppress(OSError):
                os.rename(name, unused, src_dir_fd=directory, dst_dir_fd=self._top)
                self._left -= 1
        except OSError:
            return
        else:
            self._left -= 1


def _emptied(name: str, dir_fd: int, entries: int) -> bool:
    with opened_directory(name, dir_fd=dir_fd) as top:
        if _mount_id(top) != _mount_id(dir_fd):
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))
        return _Deletion(top, entries).run()


def remove_tree(name: str, *, dir_fd: int, entries: int = ENTRIES_PER_PASS) -> bool:
    """Delete a directory and what is in it; False when there is more than one pass may delete.

    A link in place of the directory is deleted itself. Raises OSError when something stays that
    cannot be deleted (a mount point, an immutable file).
    """
    try:
        if not _emptied(name, dir_fd, entries):
            return False
        os.rmdir(name, dir_fd=dir_fd)
        passed("tree-deleted")
    except FileNotFoundError:
        return True
    except OSError as error:
        if error.errno not in (errno.ENOTDIR, errno.ELOOP):
            raise
        os.unlink(name, dir_fd=dir_fd)
    return True


@contextlib.contextmanager
def opened_for(what: str, folder: Path, name: str) -> Iterator[int]:
    """The agent's own state directory, made if need be, to read or write one file of it.

    Raises NodeNotReady, naming what was to be done and the file.
    """
    with refusing(what, folder / name):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with opened_directory(folder) as fd:
            yield fd
