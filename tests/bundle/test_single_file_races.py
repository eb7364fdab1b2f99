"""The launcher of the single file among others of its kind: nobody loses the folder that it runs."""

import fcntl
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from launcher_bed import Bed, needs_root
from waiting import eventually

needs_strace = pytest.mark.skipif(
    shutil.which("strace") is None, reason="holds a start half-way with strace"
)


def test_what_is_not_whole_stays_under_its_name_with_those_who_run_it(bed: Bed) -> None:
    """They come back to it by its path, so no other folder may get its name, which nobody keeps."""
    program, other = bed.made(), bed.made("other", "other")
    running = bed.start(program)
    [folder] = bed.unpacked()
    inode = folder.stat().st_ino
    (folder / "padding").unlink()

    second = bed.start(program)
    assert bed.run(other).returncode == 0
    assert len(bed.unpacked()) == 3
    second.communicate("\n", timeout=60)
    assert bed.run(other).returncode == 0
    assert len(bed.unpacked()) == 2
    assert folder.stat().st_ino == inode
    assert (folder / "deep" / "er" / "text").read_text() == "first"

    running.communicate("\n", timeout=60)
    assert bed.run(program).returncode == 0
    assert folder in bed.unpacked()
    assert (folder / "padding").exists()


def test_what_is_not_whole_and_in_use_never_stops_a_start(bed: Bed) -> None:
    program = bed.made()
    running = []
    for _ in range(3):
        running.append(bed.start(program))
        for folder in bed.unpacked():
            (folder / "padding").unlink(missing_ok=True)
    assert len(bed.unpacked()) == 3
    for process in running:
        process.communicate("\n", timeout=60)
    assert bed.run(program).returncode == 0
    assert len(bed.unpacked()) == 1


@needs_strace
def test_who_is_as_fast_as_another_takes_nothing_from_it(bed: Bed) -> None:
    """Both have unpacked; one is held where it is about to give the folder its name."""
    program, other, calls = bed.made(), bed.made("other", "other"), bed.root / "calls"
    held = ["strace", "-o", calls, "-e", "trace=renameat", "-e", "inject=renameat:delay_enter=2s"]
    second = subprocess.Popen([*held, program], env=bed.environment, stdout=subprocess.DEVNULL)
    eventually(lambda: calls.exists() and "renameat" in calls.read_text())
    running = bed.start(program)
    [folder] = (path for path in bed.unpacked() if not path.name.startswith("."))
    inode = folder.stat().st_ino

    assert second.wait(30) == 0
    assert bed.run(other).returncode == 0

    assert folder.stat().st_ino == inode
    assert (folder / "deep" / "er" / "text").read_text() == "first"
    running.communicate("\n", timeout=60)


@needs_strace
def test_what_it_has_locked_is_what_has_the_name(bed: Bed) -> None:
    """Held between the two, while the folder is removed and made anew."""
    program, calls = bed.made(), bed.root / "calls"
    bed.run(program)
    [folder] = bed.unpacked()
    held = ["strace", "-o", calls, "-e", "trace=flock", "-e", "inject=flock:delay_enter=2s:when=1"]
    process = subprocess.Popen(
        [*held, program, "wait"], env=bed.environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    eventually(lambda: calls.exists() and "flock" in calls.read_text())
    again = bed.place / ".making-0123456789abcdef"
    shutil.copytree(folder, again)
    folder.rename(bed.root / "removed")
    again.rename(folder)
    assert process.stdout is not None
    assert process.stdout.readline() == b"started\n"
    assert is_shared(folder)
    process.communicate(b"\n", timeout=60)


def is_shared(folder: Path) -> bool:
    """Whether somebody keeps others from removing it."""
    try:
        with locked(folder, fcntl.LOCK_EX):
            return False
    except BlockingIOError:
        return True


def test_many_that_start_at_once_share_one_folder(bed: Bed) -> None:
    program = bed.made(padding=5_000_000)
    started = [
        subprocess.Popen([program, "x"], env=bed.environment, stdout=subprocess.PIPE, text=True)
        for _ in range(20)
    ]

    assert {process.communicate(timeout=60)[0] for process in started} == {
        f"{bed.unpacked()[0]}/vgpu-agent x\n"
    }
    assert {process.returncode for process in started} == {0}
    assert len(bed.unpacked()) == 1


@needs_root
def test_first_starts_as_process_1_of_several_containers_share_one_folder(bed: Bed) -> None:
    program = bed.made(padding=20_000_000)
    own = ("unshare", "--mount", "--pid", "--fork", "--mount-proc", str(program), "x")
    started = [
        subprocess.Popen(own, env=bed.environment, stdout=subprocess.PIPE, text=True)
        for _ in range(6)
    ]
    told = {process.communicate(timeout=60)[0] for process in started}
    assert told == {f"{bed.unpacked()[0]}/vgpu-agent x\n"}
    assert len(bed.unpacked()) == 1


def test_what_another_unpacks_is_not_touched(bed: Bed) -> None:
    """Wherever the other runs: its number may be the same as ours in another container."""
    program = bed.made()
    bed.place.mkdir(parents=True)
    making = bed.place / ".making-0123456789abcdef"
    making.mkdir()
    (making / "half").write_text("")
    with locked(making, fcntl.LOCK_SH):
        assert bed.run(program).returncode == 0
        assert (making / "half").exists()
    assert bed.run(program).returncode == 0
    assert not making.exists()


@contextmanager
def locked(folder: Path, how: int) -> Iterator[None]:
    opened = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(opened, how | fcntl.LOCK_NB)
        yield
    finally:
        os.close(opened)
