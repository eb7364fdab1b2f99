"""Take the steps of a plan. Each is on disk before the next begins, and can be taken again."""

import contextlib
import errno
import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from agent.adapters.safe_files import write_all
from agent.hostinstall.folder import copy_whole, sync_directory
from agent.hostinstall.layout import InstallError, doomed, made_or_doomed, temporary
from agent.hostinstall.plan import within
from agent.hostinstall.steps import (
    CopyFolder,
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
                raise InstallError(f"could not {step}: {self._advice(error)}") from error
            except InstallError:
                self._tidy()
                raise
            self.done(step)

    def _advice(self, error: OSError) -> str:
        elsewhere = "repair or remount it"
        if error.filename and Path(os.fsdecode(error.filename)).is_relative_to(
            within(self.prefix, self.root).parent
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
                self._make_directory(within(path, self.root))
            case CopyFolder(source, path, digest):
                _copy_folder(source, within(path, self.root), digest)
            case WriteFile(path, content):
                _write_file(within(path, self.root), content)
            case PointLink(path, target):
                _point(within(path, self.root), target)
            case Remove(path):
                _remove(within(path, self.root))
            case RemoveFolder(path):
                _remove_folder(within(path, self.root))
            case RemoveIfEmpty(path):
                with contextlib.suppress(OSError):
                    within(path, self.root).rmdir()
            case Systemctl(arguments, may_fail):
                with contextlib.suppress(*((InstallError,) if may_fail else ())):
                    self._systemd().command(*arguments)
            case StartAgent():
                self._systemd().start()

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


def _remove(path: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        path.unlink()
        sync_directory(path.parent)


def _copy_folder(source: Path, target: Path, digest: str) -> None:
    making = temporary(target)
    try:
        _remove_folder(making)
        copy_whole(source, making, digest)
        if target.exists():  # damaged
            _remove_folder(target)
        making.rename(target)
        sync_directory(target.parent)
    except BaseException:
        shutil.rmtree(making, ignore_errors=True)
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
    if not path.is_symlink() and not path.exists():
        return
    going = path if made_or_doomed(path.name) else doomed(path)
    if going != path:
        shutil.rmtree(going, ignore_errors=True)
        path.rename(going)
        sync_directory(path.parent)
    shutil.rmtree(going)


@contextlib.contextmanager
def alone(root: Path) -> Iterator[None]:
    """One installation at a time, without a file that would stay. Raises InstallError."""
    directory = root / "etc"
    try:
        directory = directory if directory.is_dir() else root
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise InstallError(f"{directory} cannot be opened: {error.strerror}") from error
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InstallError("another installation runs here; wait until it has ended") from None
        yield
    finally:
        os.close(fd)
