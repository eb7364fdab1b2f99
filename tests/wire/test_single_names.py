"""A file that is written in place is the one that its name leads to, and has no other name."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from agent.adapters.safe_files import check_single


def as_it_was(_: Path) -> None:
    pass


def named_twice(file: Path) -> None:
    file.with_name("second").hardlink_to(file)


def gone(file: Path) -> None:
    """As somebody else's file that was linked here for a moment: its own name is elsewhere."""
    file.with_name("second").hardlink_to(file)
    file.unlink()


def another(file: Path) -> None:
    gone(file)
    file.write_bytes(b"another")


def a_link(file: Path) -> None:
    gone(file)
    file.symlink_to("second")


@pytest.mark.parametrize(
    ("meanwhile", "refused"),
    [
        pytest.param(as_it_was, 0, id="as it was"),
        pytest.param(named_twice, errno.EMLINK, id="named twice"),
        pytest.param(gone, errno.ENOENT, id="its name is gone"),
        pytest.param(another, errno.EMLINK, id="its name leads to another"),
        pytest.param(a_link, errno.EMLINK, id="its name is a link to it"),
    ],
)
def test_single(tmp_path: Path, meanwhile: Callable[[Path], None], refused: int) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"ours")
    directory, fd = os.open(tmp_path, os.O_RDONLY), os.open(file, os.O_RDONLY)
    try:
        meanwhile(file)
        found = 0
        try:
            check_single(fd, "file", dir_fd=directory)
        except OSError as error:
            found = error.errno or -1
        assert found == refused
    finally:
        os.close(fd)
        os.close(directory)


def test_a_directory_is_no_plain_file(tmp_path: Path) -> None:
    (tmp_path / "file").mkdir()
    directory, fd = os.open(tmp_path, os.O_RDONLY), os.open(tmp_path / "file", os.O_RDONLY)
    try:
        with pytest.raises(OSError, match="no plain file"):
            check_single(fd, "file", dir_fd=directory)
    finally:
        os.close(fd)
        os.close(directory)


def test_a_name_that_is_taken_away_while_it_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel finds the file by it and then counts the names: the other one only."""
    (tmp_path / "others").write_bytes(b"others")
    (tmp_path / "file").hardlink_to(tmp_path / "others")
    stat, looks = os.stat, []

    def found_then_counted(name: str, *, dir_fd: int, follow_symlinks: bool) -> os.stat_result:
        if looks:
            return stat(name, dir_fd=dir_fd, follow_symlinks=follow_symlinks)
        found = os.open(name, os.O_PATH | os.O_NOFOLLOW, dir_fd=dir_fd)
        try:
            os.unlink(name, dir_fd=dir_fd)
            looks.append(os.fstat(found))
        finally:
            os.close(found)
        return looks[0]

    directory, fd = os.open(tmp_path, os.O_RDONLY), os.open(tmp_path / "file", os.O_RDONLY)
    try:
        monkeypatch.setattr(os, "stat", found_then_counted)
        with pytest.raises(FileNotFoundError):
            check_single(fd, "file", dir_fd=directory)
        assert looks[0].st_nlink == 1
    finally:
        os.close(fd)
        os.close(directory)
