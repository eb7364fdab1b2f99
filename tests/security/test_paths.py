"""Links and hard links on every path that the agent writes: it is led nowhere by them."""

from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from plugin_bed import Served

from agent.adapters.kubelet import SOCKET_PREFIX
from agent.errors import AgentError
from tests.faults.test_boundaries import writers
from tests.security.paths import ELSEWHERE, WRITTEN, Written
from tests.security.racing import Bait, exchanging, insist, racing

LINKS = ("directory link", "file link", "hard link")
ROUNDS = 8


def test_every_adapter_that_writes_is_tried() -> None:
    tried = {file for _, files in WRITTEN.values() for file in files}
    writing = {name.partition(":")[0] for name, _ in writers()}
    assert writing - tried - set(ELSEWHERE) == set()
    assert set(ELSEWHERE) <= writing, "excused for nothing"


def fresh(kind: str, root: Path) -> Iterator[tuple[Written, Path]]:
    """Each path of a kind, on a host of its own, and what writes it."""
    make, _ = WRITTEN[kind]
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

        with racing(exchanging(path, put)) as turns:
            insist(written.act, ROUNDS, turns)
        assert not bait.harm(), path.name


@pytest.mark.parametrize("link", LINKS)
def test_kubelets_directory_leads_nowhere(
    tmp_path_factory: pytest.TempPathFactory, link: str
) -> None:
    root = tmp_path_factory.mktemp("d")  # short, since sockets have to fit
    bait = Bait(root)
    with ExitStack() as stack:
        served = Served(root / "dp", stack)

        def exchange() -> None:
            for path in (root / "dp").glob(f"{SOCKET_PREFIX}*"):
                exchanging(path, lambda path=path: bait.put_at(path, link))()

        with racing(exchange) as turns:
            insist(lambda: served.link.serve(served.streams.append), ROUNDS, turns)
    assert not bait.harm()
