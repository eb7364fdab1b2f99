"""Deterministic archives: nothing of the machine, the user or the hour gets into them."""

import gzip
import io
import tarfile
from collections.abc import Iterable
from pathlib import Path

from bundling.freeze import EPOCH_S


def add_bytes(archive: tarfile.TarFile, name: str, content: bytes, mode: int = 0o644) -> None:
    """Add a file that need not be on disk."""
    entry = _neutral(tarfile.TarInfo(name), mode)
    entry.size = len(content)
    archive.addfile(entry, io.BytesIO(content))


def add_tree(archive: tarfile.TarFile, folder: Path, name: str) -> int:
    """Add files and directories below `name`, links as what they lead to; count files."""
    count = 0
    if name:
        archive.addfile(_directory(name))
    for path in sorted(folder.rglob("*")):
        inside = f"{name}/{path.relative_to(folder)}" if name else str(path.relative_to(folder))
        if path.is_dir():
            archive.addfile(_directory(inside))
        else:
            executable = path.stat().st_mode & 0o100
            add_bytes(archive, inside, path.read_bytes(), 0o755 if executable else 0o644)
            count += 1
    return count


def add_link(archive: tarfile.TarFile, name: str, to: str) -> None:
    """Add a symbolic link."""
    entry = _neutral(tarfile.TarInfo(name), 0o777)
    entry.type, entry.linkname = tarfile.SYMTYPE, to
    archive.addfile(entry)


def directories(archive: tarfile.TarFile, names: Iterable[str]) -> None:
    """Add directories, as parents of what follows."""
    for name in names:
        archive.addfile(_directory(name))


def _directory(name: str) -> tarfile.TarInfo:
    entry = _neutral(tarfile.TarInfo(name), 0o755)
    entry.type = tarfile.DIRTYPE
    return entry


def _neutral(entry: tarfile.TarInfo, mode: int) -> tarfile.TarInfo:
    entry.mtime, entry.mode = EPOCH_S, mode
    return entry


def gzipped(content: bytes) -> bytes:
    """Compress, with neither name nor time."""
    packed = io.BytesIO()
    with gzip.GzipFile("", "wb", 9, packed, mtime=0) as stream:
        stream.write(content)
    return packed.getvalue()
