"""A version's folder: what its content is called, and how it is copied whole."""

import hashlib
import os
import shutil
from pathlib import Path

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
    whole = hashlib.sha256()
    for path in files_of(folder):
        with path.open("rb") as file:
            content = hashlib.file_digest(file, "sha256").digest()
        kind = b"x" if path.stat().st_mode & 0o100 else b"-"
        whole.update(path.relative_to(folder).as_posix().encode() + b"\0" + kind + content)
    return whole.hexdigest()[:DIGEST_DIGITS]


def check_frozen(folder: Path) -> None:
    """Raise InstallError unless this is a folder that could be installed."""
    if not os.access(folder / PROGRAM, os.X_OK) or not (folder / "_internal").is_dir():
        raise InstallError(
            f"{folder} is not the agent's folder: it has no program {PROGRAM} with _internal/ "
            "beside it; unpack the release, or leave --from out"
        )


def copy_whole(source: Path, target: Path, digest: str) -> None:
    """Copy everything, to disk, and make sure that it is what it should be.

    Raises OSError, InstallError; what was copied until then is for the caller to remove.
    """
    paths = files_of(source)
    wanted = sum(path.stat().st_size for path in paths) + SPARE_BYTES
    free = shutil.disk_usage(target.parent).free
    if free < wanted:
        raise InstallError(
            f"{target.parent} has {free >> 20} MiB free, and the agent needs {-(-wanted >> 20)} "
            "MiB there: free some space, or choose another place with --prefix"
        )
    target.mkdir(0o755)
    for path in paths:
        there = target / path.relative_to(source)
        there.parent.mkdir(0o755, parents=True, exist_ok=True)
        _copy_file(path, there)
    for parent, _, _ in os.walk(target):
        Path(parent).chmod(0o755)  # whatever the umask
        sync_directory(Path(parent))
    if digest_of(target) != digest:
        raise InstallError(
            f"what was copied from {source} is not what was read there before; something changes "
            "it, or a disk is faulty: fetch the release again"
        )


def _copy_file(source: Path, target: Path) -> None:
    mode = 0o755 if source.stat().st_mode & 0o100 else 0o644
    with source.open("rb") as read, target.open("wb") as written:
        shutil.copyfileobj(read, written, PIECE_BYTES)
        written.flush()
        os.fchmod(written.fileno(), mode)
        os.fsync(written.fileno())


def sync_directory(path: Path) -> None:
    """Bring the names in a directory to disk. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
