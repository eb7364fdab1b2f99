"""Links and hard links on every path that an installation writes: it is led nowhere by them.

Links of an administrator on the way there are followed, as where /opt is on another disk, so those
that are put here are another user's: who could have put one is who may write to a directory above.
"""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path

import pytest
from install_tree import made_release

from agent.errors import AgentError
from agent.hostinstall.alone import LOCK_OF_TREE, alone
from agent.hostinstall.command import Host, _have
from agent.hostinstall.layout import Layout, doomed, temporary
from agent.hostinstall.plan import Release, Wish, plan_removal
from agent.hostinstall.steps import EmptyFolder
from agent.hostinstall.tree import ROOT
from tests.security.racing import Bait, Race, exchanging, racing

NOBODY = 65534
LINKS = ("directory link", "file link", "hard link")
CALLS, MAX_INSTALLATIONS = 1, 4000

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="another user's links take root"),
    pytest.mark.timeout(600),
]


class Elsewhere(Layout):
    """The paths of an installation below a directory of the test, without a tree's own rules."""


@dataclass
class Installed:
    """A host that has the first of two releases."""

    top: Path
    host: Host
    releases: tuple[Release, Release]

    @property
    def folder(self) -> Path:
        return self.host.layout.prefix / self.releases[1].name

    def install(self) -> None:
        """One, then the other, which has to be copied anew, then the first again."""
        shutil.rmtree(self.folder, ignore_errors=True)
        for release in (*self.releases, self.releases[0]):
            with alone(self.top):
                _have(self.host, release, Wish(start=True), dry_run=False)

    def uninstall(self) -> None:
        """All of it, with a directory of the agent's own, and anew."""
        host, state = self.host, self.top / "state"
        with alone(self.top):
            with suppress(OSError):
                state.mkdir()
            with suppress(AgentError):
                also = (EmptyFolder(state),)
                host.execute(plan_removal(host.look(), host.layout, purge=True, also=also))
            _have(host, self.releases[1], Wish(start=True), dry_run=False)

    def paths(self) -> Iterator[Path]:
        """All that it writes, and the directories in which that is."""
        layout = self.host.layout
        folder = self.folder
        for path in (
            folder, layout.current, layout.previous, layout.environment, layout.unit, layout.wanted,
            layout.link,
        ):  # fmt: skip
            yield from (path, temporary(path))
        yield from (doomed(folder), folder / "_internal", temporary(folder) / "_internal")
        yield from (layout.prefix, layout.prefix.parent, layout.etc, layout.unit.parent)
        yield from (layout.wanted.parent, layout.link.parent, self.top / "state")
        yield self.top / LOCK_OF_TREE


def installed(top: Path) -> Installed:
    top.mkdir()
    own = {
        "etc": top / "etc/vgpu-agent",
        "environment": top / "etc/vgpu-agent/vgpu-agent.env",
        "new_environment": top / "etc/vgpu-agent/vgpu-agent.env.new",
        "unit": top / "etc/systemd/vgpu-agent.service",
        "wanted": top / "etc/systemd/wants/vgpu-agent.service",
        "link": top / "bin/vgpu-agent",
    }
    layout = type("Here", (Elsewhere,), own)(top / "opt/vgpu-agent")
    releases = tuple(made_release(top.with_name(f"{top.name}-{name}")) for name in "ab")
    host = Host(layout, ROOT, None, lambda _: None)
    made = Installed(top, host, (releases[0], releases[1]))
    made.install()
    return made


def each_path(root: Path) -> Iterator[tuple[int, Installed, Path]]:
    """Each path, with its number, on a host of its own."""
    number = 0
    while True:
        here = installed(root / f"h{number}")
        paths = list(here.paths())
        yield number, here, paths[number]
        number += 1
        if number == len(paths):
            return


@pytest.fixture(autouse=True)
def _quick_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)


@contextmanager
def exchanged(path: Path, bait: Bait) -> Iterator[Race]:
    """It leads to the bait in one way after the other, and between them where it should."""
    kinds = cycle(LINKS)

    def put() -> None:
        bait.put_at(path, next(kinds), owner=NOBODY)

    exchange, momentary = exchanging(path, put), not os.path.lexists(path)

    def act(race: Race) -> None:
        if os.path.lexists(path):
            exchange(race)
        else:
            put()
            race.exchanges += momentary and bool(race.under_way())  # it was nothing before
            path.unlink()

    with racing(act, giving_way=False) as race:
        yield race


ACTIONS = [
    pytest.param(Installed.install, id="install and upgrade"),
    pytest.param(Installed.uninstall, id="uninstall"),
]


@pytest.mark.parametrize("action", ACTIONS)
def test_a_path_that_is_exchanged_leads_nowhere(
    tmp_path: Path, action: Callable[[Installed], None]
) -> None:
    for number, here, there in each_path(tmp_path):
        bait = Bait(tmp_path / f"bait-{number}")
        with exchanged(there, bait) as race:
            race.insist(lambda here=here: action(here), CALLS, str(there), most=MAX_INSTALLATIONS)
        assert not bait.harm(), there


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("link", LINKS)
def test_what_lies_there_already_leads_nowhere(
    tmp_path: Path, action: Callable[[Installed], None], link: str
) -> None:
    for number, here, there in each_path(tmp_path):
        bait = Bait(tmp_path / f"bait-{number}")
        if os.path.lexists(there):
            there.rename(there.with_name("aside"))
        there.parent.mkdir(parents=True, exist_ok=True)
        bait.put_at(there, link, owner=NOBODY)
        for _ in range(2):
            with suppress(AgentError):
                action(here)
        assert not bait.harm(), there
