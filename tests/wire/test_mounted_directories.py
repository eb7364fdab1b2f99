"""Which directories are only ours any more, as the kernel tells."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.adapters.mounted_directories import MountedDirectories

LOOKS = 10_000


@pytest.fixture
def held(tmp_path: Path) -> Iterator[Path]:
    """A path that leads to a directory even when its name is gone, as a mount does."""
    (tmp_path / "vgpu").mkdir()
    descriptor = os.open(tmp_path / "vgpu", os.O_RDONLY | os.O_DIRECTORY)
    yield Path(f"/proc/self/fd/{descriptor}")
    os.close(descriptor)


def test_one_that_was_deleted_behind_its_mount(tmp_path: Path, held: Path) -> None:
    watched = MountedDirectories([tmp_path, held], leave=lambda _: None)
    assert watched.lost() == ""
    (tmp_path / "vgpu").rmdir()
    (tmp_path / "vgpu").mkdir()
    assert str(held) in watched.lost()


def test_one_that_was_deleted_where_there_is_no_mount(tmp_path: Path) -> None:
    """Whoever needs it makes it anew."""
    (tmp_path / "vgpu").mkdir()
    watched = MountedDirectories([tmp_path / "vgpu", tmp_path / "never"], leave=lambda _: None)
    assert watched.lost() == ""
    (tmp_path / "vgpu").rmdir()
    assert watched.lost() == ""


def test_one_that_is_deleted_and_made_anew_while_we_look(tmp_path: Path) -> None:
    """There is no mount: what the path leads to a moment later is what is there."""
    code = "import os, sys\nos.write(1, b'x')\nwhile True: os.rmdir(sys.argv[1]), os.mkdir(sys.argv[1])"
    directory = tmp_path / "vgpu"
    directory.mkdir()
    watched = MountedDirectories([directory], leave=lambda _: None)
    words = [sys.executable, "-c", code, directory]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.read(1)
            looks = [watched.lost() for _ in range(LOOKS)]
        finally:
            process.kill()
    assert not any(looks)


def test_one_that_is_called_so(tmp_path: Path) -> None:
    """The agent would leave again and again."""
    (tmp_path / "vgpu (deleted)").mkdir()
    watched = MountedDirectories([tmp_path / "vgpu (deleted)"], leave=lambda _: None)
    assert watched.lost() == ""
