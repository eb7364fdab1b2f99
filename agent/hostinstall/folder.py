"""A version's folder: what its content is called, and how it is copied whole."""

import contextlib
import hashlib
import os
import shutil
from pathlib import Path

from agent.adapters.safe_files import opened_directory
from agent.hostinstall.layout import PROGRAM, InstallError

DIGEST_DIGITS = 16
SPARE_BYTES = 4 << 20
LOCK = ".lock"  # the single file's, in the folder that it unpacks
PIECE_BYTES = 1 << 20


def files_of(folder: Path) -> list[Path]:
    """Its files, in the order of their names; links count as what they lead to."""
    found = []
    for parent, _, names in os.walk(folder, followlinks=True):
        found += [
            Path(parent, name) for name in names if not (name == LOCK and parent == str(folder))
        ]
    return sorted(found, key=lambda path: path.relative_to(folder).as_posix())


def digest_of(folder: Path) -> str:
    """What names the content: paths, bytes, and what may be executed. Raises OSError."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return _digest_in(fd)
    finally:
        os.close(fd)


def _digest_in(top: int) -> str:
    """The same of an open directory, which needs no /proc as its path would."""
    found = []
    for parent, _, names, fd in os.fwalk(".", dir_fd=top, follow_symlinks=True):
        for name in names:
            path = os.path.normpath(f"{parent}/{name}")
            if path != LOCK:
                found.append((path, _content(name, fd)))
    whole = hashlib.sha256()
    for path, content in sorted(found):
        whole.update(path.encode() + b"\0" + content)
    return whole.hexdigest()[:DIGEST_DIGITS]


def _content(name: str, dir_fd: int) -> bytes:
    """Whether it may be executed, and the digest of its bytes."""
    with os.fdopen(os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=dir_fd), "rb") as file:
        kind = b"x" if os.fstat(file.fileno()).st_mode & 0o100 else b"-"
        return kind + hashlib.file_digest(file, "sha256").digest()


def check_frozen(folder: Path) -> None:
    """Raise InstallError unless this is a folder that could be installed."""
    if not os.access(folder / PROGRAM, os.X_OK) or not (folder / "_internal").is_dir():
        raise InstallError(
            f"{folder} is not the agent's folder: it has no program {PROGRAM} with _internal/ "
            "beside it; unpack the release, or leave --from out"
        )


def copy_whole(source: Path, target: Path, digest: str, *, dir_fd: int) -> None:
    """Copy everything, to disk, and make sure that it is what it should be.

    `dir_fd`: of the directory in which the target is. Raises OSError, InstallError; what was copied
    until then is for the caller to remove.
    """
    paths = files_of(source)
    wanted = sum(path.stat().st_size for path in paths) + SPARE_BYTES
    free = shutil.disk_usage(dir_fd).free
    if free < wanted:
        raise InstallError(
            f"{target.parent} has {free >> 20} MiB free, and the agent needs {-(-wanted >> 20)} "
            "MiB there: free some space, or choose another place with --prefix"
        )
    os.mkdir(target.name, 0o755, dir_fd=dir_fd)
    with opened_directory(target.name, dir_fd=dir_fd) as top:
        for path in paths:
            _copy_file(path, path.relative_to(source), top)
        for _, _, _, fd in os.fwalk(".", dir_fd=top):
            os.fchmod(fd, 0o755)  # whatever the umask
            os.fsync(fd)
        if _digest_in(top) != digest:
            raise InstallError(
                f"what was copied from {source} is not what was read there before; something "
                "changes it, or a disk is faulty: fetch the release again"
            )
        named = os.stat(target.name, dir_fd=dir_fd, follow_symlinks=False)
        if not os.path.samestat(named, os.fstat(top)):
            raise InstallError(f"somebody exchanges what is copied to {target.parent}")


def _copy_file(source: Path, target: Path, top: int) -> None:
    mode = 0o755 if source.stat().st_mode & 0o100 else 0o644
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with contextlib.ExitStack() as stack:
        above = top
        for name in target.parts[:-1]:
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, 0o755, dir_fd=above)
            above = stack.enter_context(opened_directory(name, dir_fd=above))
        read = stack.enter_context(source.open("rb"))
        written = stack.enter_context(
            os.fdopen(os.open(target.name, flags, 0o600, dir_fd=above), "wb")
        )
        shutil.copyfileobj(read, written, PIECE_BYTES)
        written.flush()
        os.fchmod(written.fileno(), mode)
        os.fsync(written.fileno())
