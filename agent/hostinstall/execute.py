"""Take the steps of a plan. Each is on disk before the next begins, and can be taken again."""

import contextlib
import errno
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from agent.adapters.safe_files import remove_tree, write_all
from agent.hostinstall.folder import copy_whole
from agent.hostinstall.layout import InstallError, doomed, made_or_doomed, temporary
from agent.hostinstall.place import opened, remove_empty
from agent.hostinstall.steps import (
    CopyFolder,
    EmptyFolder,
    MakeDirectory,
    Plan,
    PointLink,
    Remove,
    RemoveFolder,
    RemoveIfEmpty,
    StartAgent,
    Step,
    Systemctl,
    WriteFile,
)
from agent.hostinstall.systemd import Systemd

ADVICE = {
    errno.EROFS: "the file system is read-only; {elsewhere}",
    errno.ENOSPC: "the disk is full; free some space and run it again",
    errno.EDQUOT: "the disk quota is used up; raise it and run it again",
    errno.EACCES: "that is not allowed; run it as root",
    errno.EPERM: "that is not allowed; run it as root",
    errno.ENOTDIR: "there is a file where a directory belongs; move it away",
    errno.ENOTEMPTY: "there is a directory with something in it; move it away",
    errno.EISDIR: "there is a directory where a file belongs; move it away",
    errno.EEXIST: "something else has that name; move it away",
    errno.ETXTBSY: "it is being executed; run it again",
}


@dataclass(slots=True)
class Executor:
    """Takes steps in a tree: the host, or `root`, which stands for one."""

    root: Path
    systemd: Systemd | None
    prefix: Path
    done: Callable[[Step], None] = lambda _: None
    _made: list[Path] = field(default_factory=list)

    def run(self, plan: Plan) -> None:
        """Take every step. Raises InstallError; what was begun is then taken back or whole."""
        for step in plan:
            try:
                self._take(step)
            except OSError as error:
                self._tidy()
                raise InstallError(f"could not {step}: {self._advice(step, error)}") from error
            except InstallError:
                self._tidy()
                raise
            self.done(step)

    def _advice(self, step: Step, error: OSError) -> str:
        elsewhere = "repair or remount it"
        path = getattr(step, "path", None)
        if path and path.is_relative_to(self.prefix.parent):
            elsewhere = "choose a place that can be written with --prefix DIR"
        elif path and "/usr/local/bin" in str(path):
            elsewhere = "do without that link with --no-link"
        text = ADVICE.get(error.errno or 0, error.strerror or type(error).__name__)
        return text.format(elsewhere=elsewhere)

    def _tidy(self) -> None:
        """Remove directories that were made for what then failed."""
        for path in reversed(self._made):
            with contextlib.suppress(OSError, InstallError):
                remove_empty(path, self.root)

    def _take(self, step: Step) -> None:
        match step:
            case MakeDirectory(path):
                with opened(path, self.root, made=self._made):
                    pass
            case CopyFolder(source, path, digest):
                with self._above(path) as above:
                    _copy_folder(source, above, path, digest)
            case WriteFile(path, content):
                with self._above(path) as above:
                    _write_file(above, path, content)
            case PointLink(path, target):
                with self._above(path) as above:
                    _point(above, path, target)
            case RemoveIfEmpty(path):
                with contextlib.suppress(OSError):
                    remove_empty(path, self.root)
            case Remove(path) | RemoveFolder(path) | EmptyFolder(path):
                with contextlib.suppress(FileNotFoundError), self._above(path) as above:
                    _take_away(step, above, path)
            case Systemctl(arguments, may_fail):
                with contextlib.suppress(*((InstallError,) if may_fail else ())):
                    self._systemd().command(*arguments)
            case StartAgent(serves=serves):
                self._systemd().start(serves=serves)

    def _systemd(self) -> Systemd:
        if self.systemd is None:
            raise InstallError("there is no systemd here to be told anything")
        return self.systemd

    def _above(self, path: Path) -> contextlib.AbstractContextManager[int]:
        return opened(path.parent, self.root)


# --- each by names in the directory above, of which there is a descriptor -------------------------


def _take_away(step: Remove | RemoveFolder | EmptyFolder, above: int, path: Path) -> None:
    match step:
        case Remove():
            os.unlink(path.name, dir_fd=above)
            os.fsync(above)
        case RemoveFolder():
            _remove_folder(above, path)
        case EmptyFolder():
            _empty(above, path.name)


def _copy_folder(source: Path, above: int, path: Path, digest: str) -> None:
    making = temporary(path)
    try:
        _remove_folder(above, making)
        copy_whole(source, making, digest, dir_fd=above)
        if _there(above, path.name):  # damaged
            _remove_folder(above, path)
        os.rename(making.name, path.name, src_dir_fd=above, dst_dir_fd=above)
        os.fsync(above)
    except BaseException:
        with contextlib.suppress(OSError):
            _empty(above, making.name)
        raise


def _write_file(above: int, path: Path, content: bytes) -> None:
    making = temporary(path).name
    _unlink(above, making)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(making, flags, 0o600, dir_fd=above)
    try:
        try:
            write_all(fd, content)
            os.fchmod(fd, 0o644)
            os.fsync(fd)
        finally:
            os.close(fd)
        os.rename(making, path.name, src_dir_fd=above, dst_dir_fd=above)
    except BaseException:
        _unlink(above, making)
        raise
    os.fsync(above)


def _point(above: int, path: Path, target: str) -> None:
    making = temporary(path).name
    _unlink(above, making)
    os.symlink(target, making, dir_fd=above)
    try:
        os.rename(making, path.name, src_dir_fd=above, dst_dir_fd=above)
    except BaseException:
        _unlink(above, making)
        raise
    os.fsync(above)


def _unlink(above: int, name: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(name, dir_fd=above)


def _there(above: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=above, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _remove_folder(above: int, path: Path) -> None:
    """Under its name it is whole or not there, however this ends."""
    if not _there(above, path.name):
        return
    going = path if made_or_doomed(path.name) else doomed(path)
    if going != path:
        _empty(above, going.name)
        os.rename(path.name, going.name, src_dir_fd=above, dst_dir_fd=above)
        os.fsync(above)
    _empty(above, going.name)


def _empty(above: int, name: str) -> None:
    """Remove what has this name, and all in it; of a link itself, and not what it leads to."""
    while not remove_tree(name, dir_fd=above):
        continue
