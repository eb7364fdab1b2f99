"""Where the demo puts its node's files."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from waiting import eventually

from agent.demo.place import NoPlaceError, made_place, usable, wanted


def flags_of(path: Path) -> int:
    """As if directories were mounted as they are called."""
    if not path.exists():
        raise FileNotFoundError(2, "No such file or directory")
    return {"noexec": os.ST_NOEXEC, "read-only": os.ST_RDONLY}.get(path.name, 0)


def test_the_first_that_is_usable(tmp_path: Path) -> None:
    for name in ("noexec", "read-only", "good", "other"):
        (tmp_path / name).mkdir()
    places = [tmp_path / name for name in ("missing", "noexec", "read-only", "good", "other")]
    assert usable(places, flags_of) == tmp_path / "good"


def test_what_the_user_set_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    assert next(wanted()) == tmp_path
    assert made_place("here-", keep=True).parent == tmp_path


def test_where_nothing_is_usable_each_reason_is_told(tmp_path: Path) -> None:
    (tmp_path / "noexec").mkdir()
    (tmp_path / "file").touch()
    with pytest.raises(NoPlaceError) as told:
        usable([tmp_path / name for name in ("noexec", "missing", "file")], flags_of)
    for part in (
        f"{tmp_path / 'noexec'} is mounted noexec",
        f"{tmp_path / 'missing'} cannot be used (No such file or directory)",
        f"{tmp_path / 'file'} cannot be written",
        "Set TMPDIR",
    ):
        assert part in str(told.value)


# It has a place and an "agent" that was told of it, tells both, and waits.
USER = """
import subprocess, sys
from agent.demo.place import made_place
place = made_place("d-", keep=sys.argv[1] == "keep")
(place / "sub").mkdir()
(place / "sub" / "file").touch()
wait = "import time; time.sleep(60)"
agent = subprocess.Popen([sys.executable, "-c", wait, place / "state"], stdout=subprocess.DEVNULL)
print(place, agent.pid, flush=True)
sys.stdin.read()
"""


@contextmanager
def with_place(
    tmp_path: Path, keep: str = ""
) -> Iterator[tuple["subprocess.Popen[str]", Path, int]]:
    """A process, its place, and the pid of its agent."""
    process = subprocess.Popen(
        [sys.executable, "-c", USER, keep],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"TMPDIR": str(tmp_path)},
        cwd=Path(__file__).parents[2],
        start_new_session=True,
    )
    assert process.stdout is not None
    place, pid = process.stdout.readline().split()
    try:
        yield process, Path(place), int(pid)
    finally:
        process.kill()
        process.communicate(timeout=60)
        if runs(int(pid)):
            os.kill(int(pid), signal.SIGKILL)


def cleaner_of(pid: int) -> bool:
    """Whether a child of it has a session of its own."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return any(os.getsid(int(child)) == int(child) for child in children)


def runs(pid: int) -> bool:
    """Whether it does anything: one that has ended and that nobody waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("whom", [os.kill, os.killpg], ids=["it", "its group"])
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT, signal.SIGHUP, signal.SIGTERM])
def test_however_it_ends_nothing_is_left(
    tmp_path: Path, how: signal.Signals, whom: Callable[[int, int], None]
) -> None:
    with with_place(tmp_path) as (process, place, agent):
        if how is signal.SIGKILL:  # it must have left its group
            eventually(lambda: cleaner_of(process.pid))
        whom(process.pid, how)
        process.communicate(timeout=60)  # what it printed has an end: who cleans holds no pipe
        eventually(lambda: not place.exists())
        eventually(lambda: not runs(agent))


def test_what_is_to_be_kept_stays(tmp_path: Path) -> None:
    with with_place(tmp_path, "keep") as (process, place, agent):
        process.kill()
        process.communicate(timeout=60)
        os.kill(agent, signal.SIGKILL)
        eventually(lambda: not runs(agent))
        assert (place / "sub" / "file").exists()


def test_the_programs_of_others_that_look_into_it_live_on(tmp_path: Path) -> None:
    with with_place(tmp_path) as (process, place, _):
        other = subprocess.Popen(["tail", "-f", place / "sub" / "file"], stderr=subprocess.DEVNULL)
        process.kill()
        eventually(lambda: not place.exists())
        assert other.poll() is None
        other.kill()
        other.wait(10)
