"""Limits files that another one took the place of: whoever has one mounted goes on with it.

<host vgpu dir>/exchanged/                   root's, 0755; made when there is one
    <pod uid>_<container>.<inode>            what `limits/<pod uid>_<container>` was

They are kept until the container's directory is deleted: what they are known by outlives the agent,
and nobody else's file gets their inode.
"""

import contextlib
import errno
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

from agent.boundaries import passed
from agent.domain.proc_text import FileId

# Of file systems where no file has a second name: only the agent that exchanged one knows it then.
WITHOUT_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK)


@contextlib.contextmanager
def put_by(
    name: str, *, folder: int, beside: Callable[[], AbstractContextManager[int]]
) -> Iterator[None]:
    """Keep the file of this name while another one takes its place, at once as ever.

    `folder`: where it lies. `beside`: opens the directory for those that are kept. Raises OSError
    and NodeNotReady; then nothing is kept.
    """
    try:
        own = f"{name}.{os.stat(name, dir_fd=folder, follow_symlinks=False).st_ino}"
    except FileNotFoundError:
        yield
        return
    with beside() as elsewhere:
        try:
            os.link(name, own, src_dir_fd=folder, dst_dir_fd=elsewhere, follow_symlinks=False)
        except FileExistsError:
            pass  # of an agent that was killed here
        except OSError as error:
            if error.errno not in WITHOUT_LINKS:
                raise
        else:
            passed("limits-kept")
        try:
            yield
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(own, dir_fd=elsewhere)
            raise


def mend(folder: int, beside: int) -> None:
    """Undo what an agent that was killed only began: the file has its own name in `folder` still.

    For whoever is the only one to write there. Raises OSError.
    """
    for whose, own, info in list(kept(beside)):
        with contextlib.suppress(FileNotFoundError):
            if os.stat(whose, dir_fd=folder, follow_symlinks=False).st_ino == info.st_ino:
                os.unlink(own, dir_fd=beside)
                passed("limits-not-kept")


def ids_of(name: str, beside: int) -> frozenset[FileId]:
    """By what those of a container are known. Raises OSError."""
    return frozenset(file_id(info) for whose, _, info in kept(beside) if whose == name)


def forget(name: str, beside: int) -> None:
    """Delete those of a container. Raises OSError."""
    for own in [own for whose, own, _ in kept(beside) if whose == name]:
        os.unlink(own, dir_fd=beside)
        passed("kept-limits-deleted")


def kept(beside: int) -> Iterator[tuple[str, str, os.stat_result]]:
    """Of each: `<pod uid>_<container>`, its own name, what it is. Raises OSError."""
    with os.scandir(beside) as entries:
        for entry in entries:
            whose, _, inode = entry.name.rpartition(".")
            if inode.isdecimal():
                yield whose, entry.name, entry.stat(follow_symlinks=False)


def file_id(info: os.stat_result) -> FileId:
    """By what `/proc/PID/maps` names a file."""
    return FileId(os.major(info.st_dev), os.minor(info.st_dev), info.st_ino)
