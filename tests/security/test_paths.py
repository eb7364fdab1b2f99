"""Links and hard links on every path that the agent writes: it is led nowhere by them."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from plugin_bed import Served

from agent.adapters.kubelet import SOCKET_PREFIX
from agent.errors import AgentError
from agent.shipped import FilesError, shipped, unpack
from tests.security.paths import ELSEWHERE, WRITTEN, Written
from tests.security.racing import MAX_CALLS, Bait, NoRace, Race, exchanging, racing
from tests.security.recorded_writes import UNGUESSABLE, Recorded, functions_that_write, recording

Seen = tuple[Written, Recorded, Recorded]
LINKS = ("directory link", "file link", "hard link")
CALLS = 5
MAX_EXCHANGES = 50_000  # a hard link takes 20,000 at times, within one call or between two

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(autouse=True)
def _quick_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: time.sleep(0))


# --- that none is left out --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Seen]:
    """By kind: its paths, what was written to before, and when it did all that it does."""
    found = {}
    for kind, make in WRITTEN.items():
        with recording() as before:
            written = make(tmp_path_factory.mktemp("recorded"))
        with recording() as recorded:
            for _ in range(2):
                with suppress(AgentError):
                    written.act()
        written.end()
        found[kind] = written, before, recorded
    return found


@pytest.mark.parametrize("kind", WRITTEN)
def test_no_path_that_is_written_is_left_out(recorded: dict[str, Seen], kind: str) -> None:
    """Nor is one tried to which nothing is ever written."""
    written, before, seen = recorded[kind]
    assert seen.paths - set(written.paths) - set(written.followed) == set()
    there = {path for path in written.paths if not UNGUESSABLE.fullmatch(path.name)}
    assert there - seen.paths - before.paths == set()


def test_no_function_that_writes_is_left_out(recorded: dict[str, Seen]) -> None:
    ran = {name for _, *both in recorded.values() for seen in both for name in seen.functions}
    there = set(functions_that_write())
    assert len(there) > 30
    assert there - ran - set(ELSEWHERE) == set()
    assert set(ELSEWHERE) - (there - ran) == set(), "excused for nothing"


# --- links ------------------------------------------------------------------------------------------


def fresh(kind: str, root: Path) -> Iterator[tuple[Written, Path]]:
    """Each path of a kind, on a host of its own, and what writes it."""
    make = WRITTEN[kind]
    number = 0
    while True:
        (host := root / f"host-{number}").mkdir(mode=0o755)
        written = make(host)
        try:
            yield written, written.paths[number]
        finally:
            written.end()
        number += 1
        if number == len(written.paths):
            return


@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize("kind", WRITTEN)
def test_what_lies_there_already_leads_nowhere(tmp_path: Path, kind: str, link: str) -> None:
    for written, path in fresh(kind, tmp_path):
        bait = Bait(tmp_path / f"bait-{len(list(tmp_path.iterdir()))}", written.like)
        if os.path.lexists(path):
            path.rename(path.with_name("aside"))
        bait.put_at(path, link)
        for _ in range(2):
            with suppress(AgentError):
                written.act()
        assert not bait.harm(), path.name


@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize("kind", WRITTEN)
def test_a_path_that_is_exchanged_leads_nowhere(tmp_path: Path, kind: str, link: str) -> None:
    """Whoever could exchange one of our paths in the middle of it gains nothing by it."""
    for written, path in fresh(kind, tmp_path):
        bait = Bait(tmp_path / f"bait-{len(list(tmp_path.iterdir()))}", written.like)

        def put(path: Path = path, bait: Bait = bait) -> None:
            bait.put_at(path, link)

        with racing(exchanging(path, put)) as race:
            race.insist(written.act, CALLS, str(path.relative_to(tmp_path)))
        assert not bait.harm(), path.name


@pytest.mark.parametrize("link", LINKS)
def test_kubelets_directory_leads_nowhere(
    tmp_path_factory: pytest.TempPathFactory, link: str
) -> None:
    root = tmp_path_factory.mktemp("d")  # short, since sockets have to fit
    bait = Bait(root)
    with ExitStack() as stack:
        served = Served(root / "dp", stack)

        def exchange(race: Race) -> None:
            for path in (root / "dp").glob(f"{SOCKET_PREFIX}*"):
                exchanging(path, lambda path=path: bait.put_at(path, link))(race)

        with racing(exchange) as race:
            race.insist(lambda: served.link.serve(served.streams.append), CALLS)
    assert not bait.harm()


def test_files_are_unpacked_to_no_other_place(tmp_path: Path) -> None:
    """`vgpu-agent files --to`: a link that somebody has put in a file's place is not written to."""
    for number, name in enumerate(shipped()):
        bait, there = Bait(tmp_path / f"bait-{number}"), tmp_path / f"there-{number}" / name
        there.parent.mkdir(parents=True)
        there.symlink_to(bait.directory / "new")
        with pytest.raises(FilesError, match="cannot be used: File exists"):
            unpack(tmp_path / f"there-{number}")
        assert not bait.harm(), name


# --- that such a race would find something -----------------------------------------------------------


class Harmed(Exception):
    """The bait is not as it was."""


def careless(path: Path) -> None:
    """As one would write who looks first: no link is there, and a moment later one is."""
    with suppress(OSError):
        if path.is_file() and not path.is_symlink() and path.stat().st_nlink == 1:
            with path.open("ab") as file:
                file.write(b"harm")


def careless_below(path: Path) -> None:
    with suppress(OSError):
        if not path.is_symlink():
            (path / "harm").touch()


@pytest.mark.parametrize(
    ("link", "act"),
    [
        pytest.param("directory link", careless_below, id="directory link"),
        pytest.param("file link", careless, id="file link"),
        pytest.param("hard link", careless, id="hard link"),
    ],
)
def test_who_looks_first_is_led_astray(
    tmp_path: Path, link: str, act: Callable[[Path], None]
) -> None:
    path = tmp_path / "path"
    path.mkdir() if act is careless_below else path.touch()
    bait = Bait(tmp_path)

    def until_harmed() -> None:
        act(path)
        if bait.harm():
            raise Harmed

    def tried() -> None:
        while race.calls < MAX_CALLS or race.exchanges < MAX_EXCHANGES:
            race.call(until_harmed)
        pytest.fail(f"not harmed; there now: {path.exists()}, {race}")

    with racing(exchanging(path, lambda: bait.put_at(path, link))) as race, pytest.raises(Harmed):
        tried()


def test_a_path_that_is_never_exchanged_is_no_race(tmp_path: Path) -> None:
    """Tries that come to nothing do not count."""
    path, bait = tmp_path / "never there", Bait(tmp_path)
    with (
        racing(exchanging(path, lambda: bait.put_at(path, "file link"))) as race,
        pytest.raises(NoRace, match="exchanged 0 times"),
    ):
        race.insist(lambda: None, 1)
