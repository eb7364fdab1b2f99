"""What a tenant or a neighbour can try against the agent itself: races on paths, signals, disks."""

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from agent.adapters.caches import HostCaches
from agent.adapters.limit_records import LimitRecords
from agent.adapters.safe_files import remove_unfinished
from agent.domain.limit_record import LimitRecord
from agent.errors import AgentError

UID, CONTAINER = "0b0e0f10-0000-4000-8000-000000000001", "main"
ROUNDS = 100


class Bait:
    """A directory with a file that must stay as it is, whoever is led to it."""

    def __init__(self, root: Path) -> None:
        self.directory = root / "bait"
        self.directory.mkdir(mode=0o700)
        self.file = self.directory / "secret"
        self.file.write_text("untouched")
        self.file.chmod(0o600)
        self._before = self._state()

    def _state(self) -> tuple[object, ...]:
        info, above = self.file.stat(), self.directory.stat()
        return (
            sorted(self.directory.iterdir()), self.file.read_text(), info.st_mode, info.st_uid,
            info.st_nlink, above.st_mode, above.st_uid,
        )  # fmt: skip

    def untouched(self) -> bool:
        return self._state() == self._before


@contextmanager
def racing(act: Callable[[], None]) -> Iterator[list[int]]:
    """Do something again and again, as fast as it goes, beside what is inside the block."""
    stop, turns = threading.Event(), [0]

    def run() -> None:
        while not stop.is_set():
            with suppress(OSError):
                act()
            turns[0] += 1

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield turns
    finally:
        stop.set()
        thread.join()


def exchanging(path: Path, with_what: Callable[[], None]) -> Callable[[], None]:
    """Take away what is at a path, put something else there, take that away."""

    def act() -> None:
        aside = path.with_name(f"aside-{time.monotonic_ns()}")
        path.rename(aside)
        with_what()
        try:
            path.unlink()
        except OSError:
            path.rmdir()
        aside.rename(path)

    return act


@pytest.fixture
def host(tmp_path: Path) -> Path:
    root = tmp_path / "vgpu"
    root.mkdir(mode=0o755)
    (root / "libvgpu.so").write_bytes(b"hook")
    return root


@pytest.fixture
def bait(tmp_path: Path) -> Bait:
    return Bait(tmp_path)


def caches(host: Path) -> HostCaches:
    return HostCaches(host, lock_dir=host / "vgpulock")


def insist(action: Callable[[], object]) -> None:
    """Try it many times: what fails is an error in words, and nothing else is raised."""
    for _ in range(ROUNDS):
        with suppress(AgentError):
            action()


@pytest.mark.parametrize("kind", ["directory link", "file link", "hard link"])
@pytest.mark.parametrize("where", ["container", "region", "limits", "lock directory"])
def test_a_path_that_is_exchanged_leads_nowhere(
    host: Path, bait: Bait, where: str, kind: str
) -> None:
    """Whoever could exchange one of our paths in the middle of it gains nothing by it."""
    ours = caches(host)
    ours.prepare()
    own = ours.create(UID, CONTAINER)
    ours.write_limits(UID, CONTAINER, b"x" * 64)
    region = own / "a.cache"
    region.write_bytes(b"r" * 100)
    path = {
        "container": own, "region": region, "limits": host / "limits" / own.name,
        "lock directory": host / "vgpulock",
    }[where]  # fmt: skip

    def put() -> None:
        if kind == "hard link":
            path.hardlink_to(bait.file)
        else:
            path.symlink_to(bait.directory if kind == "directory link" else bait.file)

    def everything() -> None:
        ours.prepare()
        ours.create(UID, CONTAINER)
        ours.write_limits(UID, CONTAINER, os.urandom(32))
        ours.seen_region(UID, CONTAINER, "a.cache")
        ours.listed()

    with racing(exchanging(path, put)) as turns:
        insist(everything)
        insist(lambda: ours.discard(own.name)) if where != "lock directory" else None
    assert turns[0] > 3, "there was a race"
    assert bait.untouched()


def test_links_among_what_is_taken_away_are_not_followed(tmp_path: Path, bait: Bait) -> None:
    folder = tmp_path / "limits"
    folder.mkdir()
    (folder / ".a_main.1.0123abcd").symlink_to(bait.file)
    (folder / ".b_main.1.0123abcd").hardlink_to(tmp_path / "bait/secret")
    (folder / "kept").symlink_to(bait.directory)
    remove_unfinished(folder)
    assert [path.name for path in folder.iterdir()] == ["kept"]
    assert bait.file.read_text() == "untouched"
    (tmp_path / "linked").symlink_to(folder)
    (folder / ".c_main.1.0123abcd").touch()
    remove_unfinished(tmp_path / "linked")
    assert (folder / ".c_main.1.0123abcd").exists()


HOSTILE = {
    "a path above": "../../etc", "an absolute path": "/etc/passwd", "a dot": ".", "nothing": "",
    "control characters": "a\x1b[2J\nb", "a NUL": "a\x00b", "a mebibyte": "a" * (1 << 20),
    "unicode": "p\u202eo\u0301d\U0001f4a3", "a surrogate": "a\udcff", "a slash": "a/b",
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE.values(), ids=HOSTILE)
@pytest.mark.parametrize("field", ["pod uid", "container"])
def test_a_hostile_name_is_a_clear_error(host: Path, tmp_path: Path, name: str, field: str) -> None:
    uid, container = (name, CONTAINER) if field == "pod uid" else (UID, name)
    ours, records = caches(host), LimitRecords(tmp_path / "state")
    before = sorted(tmp_path.rglob("*"))
    for action in (
        lambda: ours.create(uid, container),
        lambda: ours.write_limits(uid, container, b""),
        lambda: ours.seen_region(uid, container, "x.cache"),
        lambda: records.write(uid, container, LimitRecord()),
        lambda: ours.discard(f"{uid}_{container}"),
    ):
        with pytest.raises(AgentError) as caught:
            action()
        assert str(caught.value).isprintable()
    assert sorted(tmp_path.rglob("*")) == before
