"""The file by which those who divide a node's GPUs keep out of each other's way, as it really lies."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from agent.adapters import mig_files
from agent.adapters.mig_files import OURS, HamiApplyLock
from agent.errors import NodeNotReady

TENANT = 12345


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "apply.lock"


def test_it_is_there_while_we_divide(tmp_path: Path) -> None:
    path = tmp_path / "hami" / "apply.lock"
    lock = HamiApplyLock(path)
    assert not lock.dividing()
    with lock.held():
        assert path.read_bytes() == OURS
        assert (lock.holder(), lock.dividing()) == ("", True)
    assert not path.exists()
    assert not lock.dividing()


def test_what_a_killed_agent_left_is_our_own(path: Path) -> None:
    path.write_bytes(OURS)
    lock = HamiApplyLock(path)
    assert (lock.holder(), lock.dividing()) == ("", False)
    assert path.exists()  # whoever only asks may be beside the agent that divides
    lock.tidy()
    assert not path.exists()  # HAMi's monitor would wait for it
    path.write_bytes(OURS)
    with lock.held():
        lock.tidy()
        assert path.exists()
    assert not path.exists()


@pytest.mark.parametrize("content", [b"", b"applying\n"], ids=["empty", "with words"])
def test_others_are_not_tidied_away(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    HamiApplyLock(path).tidy()
    assert path.read_bytes() == content


@pytest.mark.parametrize(
    ("age_s", "owner", "held"),
    [
        pytest.param(1, 0, True, id="HAMi's"),
        pytest.param(-1, 0, True, id="of a clock that was set back a little"),
        pytest.param(3600, 0, False, id="left behind"),
        pytest.param(-3600, 0, False, id="of a time to come"),
        pytest.param(1, TENANT, False, id="a tenant's"),
    ],
)
def test_somebody_elses_lock(path: Path, age_s: int, owner: int, *, held: bool) -> None:
    path.touch()
    if owner and os.geteuid() != 0:
        pytest.skip("only root gives files away")
    os.chown(path, owner or -1, -1)
    lock = HamiApplyLock(path, now_s=lambda: path.stat().st_mtime + age_s)
    assert (bool(lock.holder()), lock.dividing()) == (held, held)
    if held:
        with pytest.raises(NodeNotReady, match="stop that plugin"), lock.held():
            pytest.fail("beside HAMi's plugin")
    else:
        with lock.held():
            assert lock.dividing()
    assert path.exists()  # it is theirs
    assert lock.dividing() is held


def test_what_begins_after_we_looked_is_not_disturbed(path: Path) -> None:
    lock = HamiApplyLock(path)
    assert not lock.holder()
    path.write_text("applying\n")
    with (
        pytest.raises(NodeNotReady, match=r"HAMi's device plugin.*wait until it is done"),
        lock.held(),
    ):
        pytest.fail("beside HAMi's plugin")
    assert path.read_text() == "applying\n"
    path.unlink()
    with lock.held():
        assert path.exists()


def test_what_hami_makes_in_place_of_ours_stays(path: Path) -> None:
    """Its plugin looks whether there is one, and then makes it whether there is one or not."""
    lock = HamiApplyLock(path)
    with lock.held():
        path.write_bytes(b"")
        assert lock.holder()
    assert path.exists()
    assert lock.dividing()


def test_one_that_goes_while_we_look_is_made_anew(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path.touch()
    stat = os.stat

    def gone(*args: object, **kwargs: object) -> os.stat_result:
        path.unlink(missing_ok=True)
        return stat(*args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "stat", gone)
    with HamiApplyLock(path).held():
        monkeypatch.undo()
        assert path.read_bytes() == OURS
    assert not path.exists()


def full(_fd: int, _content: bytes) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_on_a_full_disk_nothing_is_left_that_would_pass_for_hamis(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mig_files, "write_all", full)
    with HamiApplyLock(path).held():
        assert not path.exists()


@pytest.mark.parametrize(
    ("put", "held"),
    [
        pytest.param(os.mkfifo, True, id="a pipe"),
        pytest.param(Path.mkdir, True, id="a directory"),
        pytest.param(lambda at: at.symlink_to("/etc/passwd"), False, id="a link"),
    ],
)
def test_one_that_is_no_file_holds_nobody_up(
    path: Path, put: Callable[[Path], None], *, held: bool
) -> None:
    put(path)
    assert bool(HamiApplyLock(path).holder()) is held  # HAMi makes no links
    assert os.path.lexists(path)


@pytest.mark.parametrize(
    "put",
    [
        pytest.param(lambda at: at.write_text(""), id="a file"),
        pytest.param(lambda at: at.symlink_to("/nowhere"), id="a link that leads nowhere"),
    ],
)
def test_without_a_directory_there_is_no_sign_and_no_hindrance(
    tmp_path: Path, put: Callable[[Path], None]
) -> None:
    put(tmp_path / "hami")
    lock = HamiApplyLock(tmp_path / "hami" / "apply.lock")
    with lock.held():
        assert lock.dividing()
    lock.tidy()
    assert not lock.dividing()
