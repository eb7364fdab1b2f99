"""Take the steps of a plan. Each is on disk before the next begins, and can be taken again."""

import contextlib
import errno
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from agent.adapters.safe_files import remove_tree, write_all
from agent.hostinstall.folder import copy_whole, sync_directory
from agent.hostinstall.layout import InstallError, doomed, made_or_doomed, temporary
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
from agent.hostinstall.tree import directory_within, within

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
                raise InstallError(f"could not {step}: {self._advice(error)}") from error
            except InstallError:
                self._tidy()
                raise
            self.done(step)

    def _advice(self, error: OSError) -> str:
        elsewhere = "repair or remount it"
        if error.filename and Path(os.fsdecode(error.filename)).is_relative_to(
            directory_within(self.prefix, self.root).parent
        ):
            elsewhere = "choose a place that can be written with --prefix DIR"
        elif error.filename and "/usr/local/bin" in os.fsdecode(error.filename):
            elsewhere = "do without that link with --no-link"
        text = ADVICE.get(error.errno or 0, error.strerror or type(error).__name__)
        return text.format(elsewhere=elsewhere)

    def _tidy(self) -> None:
        """Remove directories that were made for what then failed."""
        for path in reversed(self._made):
            with contextlib.suppress(OSError):
                path.rmdir()

    def _take(self, step: Step) -> None:
        match step:
            case MakeDirectory(path):
                self._make_directory(directory_within(path, self.root))
            case CopyFolder(source, path, digest):
                _copy_folder(source, within(path, self.root), digest)
            case WriteFile(path, content):
                _write_file(within(path, self.root), content)
            case PointLink(path, target):
                _point(within(path, self.root), target)
            case Remove() | RemoveFolder() | EmptyFolder() | RemoveIfEmpty():
                _take_away(step, self.root)
            case Systemctl(arguments, may_fail):
                with contextlib.suppress(*((InstallError,) if may_fail else ())):
                    self._systemd().command(*arguments)
            case StartAgent(serves=serves):
                self._systemd().start(serves=serves)

    def _systemd(self) -> Systemd:
        if self.systemd is None:
            raise InstallError("there is no systemd here to be told anything")
        return self.systemd

    def _make_directory(self, path: Path) -> None:
        missing = []
        while not path.is_dir():
            missing.append(path)
            path = path.parent
        for directory in reversed(missing):
            directory.mkdir(0o755)
            directory.chmod(0o755)  # whatever the umask
            self._made.append(directory)
            sync_directory(directory.parent)


def _take_away(step: Remove | RemoveFolder | EmptyFolder | RemoveIfEmpty, root: Path) -> None:
    path = within(step.path, root)
    match step:
        case Remove():
            _remove(path)
        case RemoveFolder():
            _remove_folder(path)
        case EmptyFolder():
            _empty(path)
        case RemoveIfEmpty():
            with contextlib.suppress(OSError):
                directory_within(step.path, root).rmdir()


def _remove(path: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        path.unlink()
        sync_directory(path.parent)


def _copy_folder(source: Path, target: Path, digest: str) -> None:
    making = temporary(target)
    try:
        _remove_folder(making)
        copy_whole(source, making, digest)
        if os.path.lexists(target):  # damaged
            _remove_folder(target)
        making.rename(target)
        sync_directory(target.parent)
    except BaseException:
        with contextlib.suppress(OSError):
            _empty(making)
        raise


def _write_file(path: Path, content: bytes) -> None:
    making = temporary(path)
    making.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(making, flags, 0o600)
    try:
        try:
            write_all(fd, content)
            os.fchmod(fd, 0o644)
            os.fsync(fd)
        finally:
            os.close(fd)
        making.rename(path)
    except BaseException:
        making.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def _point(path: Path, target: str) -> None:
    making = temporary(path)
    making.unlink(missing_ok=True)
    making.symlink_to(target)
    try:
        making.rename(path)
    except BaseException:
        making.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def _remove_folder(path: Path) -> None:
    """Under its name it is whole or not there, however this ends."""
    if not os.path.lexists(path):
        return
    going = path if made_or_doomed(path.name) else doomed(path)
    if going != path:
        _empty(going)
        path.rename(going)
        sync_directory(path.parent)
    _empty(going)


def _empty(path: Path) -> None:
    """Remove what has this name, and all in it; of a link itself, and not what it leads to."""
    fd = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        while not remove_tree(path.name, dir_fd=fd):
            continue
    finally:
        os.close(fd)
