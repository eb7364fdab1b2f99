"""What a fleet of agents asks of its API server, in short; `build.py scale` does it with thousands."""

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent import logs
from tests.scale import real_agent
from tests.scale.counts import Counts
from tests.scale.fleet import Fleet

ROOT = Path(__file__).resolve().parents[2]
NODES = 20
HOUR_S = 3600.0


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logs.configure(level="critical")
    yield
    logs.configure()


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    fleet = Fleet(tmp_path, NODES, pods=3)
    fleet.start()
    fleet.settle(within_s=60.0)
    yield fleet
    fleet.close()


def counted(fleet: Fleet) -> Counts:
    counts, fleet.front.counts = fleet.front.counts, Counts()
    return counts


def asked(counts: Counts) -> dict[str, int]:
    """Requests per verb and resource, refused ones apart."""
    told: dict[str, int] = {}
    for (verb, resource, code), number in counts.requests.items():
        name = f"{verb} {resource}" + (f" {code}" if code >= 300 else "")
        told[name] = told.get(name, 0) + number
    return told


def seconds(counts: Counts) -> list[int]:
    """Requests in each second that had any."""
    totals: dict[int, int] = {}
    for (second, _verb, _code), number in counts.by_second.items():
        totals[second] = totals.get(second, 0) + number
    return list(totals.values())


def test_a_start_is_a_cached_list_two_watches_and_a_write(fleet: Fleet) -> None:
    counts = counted(fleet)
    assert asked(counts) == dict.fromkeys(
        ("list pods", "watch pods", "watch nodes", "patch nodes"), NODES
    )
    assert counts.cached_lists == NODES


def test_a_start_anew_writes_nothing(fleet: Fleet) -> None:
    fleet.stop()
    counted(fleet)
    fleet.start()
    fleet.settle(within_s=60.0)
    assert asked(counted(fleet)) == dict.fromkeys(("list pods", "watch pods", "watch nodes"), NODES)


def test_at_rest_watches_are_renewed_and_nothing_else_is_asked(fleet: Fleet) -> None:
    counted(fleet)
    fleet.run(HOUR_S)
    counts = counted(fleet)
    assert set(asked(counts)) == {"watch pods", "watch nodes"}
    renewals = sum(counts.requests.values()) / NODES
    assert renewals <= 2 * 6  # two in ten minutes
    assert counts.unselected == 0


@pytest.mark.parametrize("how", ["in good order", "cut"])
def test_an_api_server_that_goes_does_not_get_all_back_at_once(fleet: Fleet, how: str) -> None:
    fleet.run(100.0)
    counted(fleet)
    if how == "cut":
        fleet.front.go_down()
        fleet.front.listen()  # another one has taken over at once
    else:
        fleet.front.end_watches()
    fleet.run(10.0)
    counts = counted(fleet)
    assert fleet.settled()
    assert asked(counts) == {"watch pods": NODES, "watch nodes": NODES}
    assert max(seconds(counts)) <= NODES


def test_an_outage_of_a_minute_costs_no_list(fleet: Fleet) -> None:
    counted(fleet)
    fleet.front.go_down()
    fleet.run(60.0)
    fleet.front.listen()
    fleet.run(60.0)
    assert fleet.settled()
    assert asked(counted(fleet)) == {"watch pods": NODES, "watch nodes": NODES}


def test_a_lost_history_costs_one_list_each(fleet: Fleet) -> None:
    counted(fleet)
    fleet.front.expire_watches()
    fleet.run(60.0)
    counts = counted(fleet)
    assert fleet.settled()
    assert asked(counts) == {"list pods": NODES, "watch pods": 2 * NODES, "watch nodes": NODES}
    assert counts.cached_lists == 0
    assert max(seconds(counts)) <= 2 * NODES  # of four each


def test_who_is_told_to_wait_waits_and_lists_nothing_anew(fleet: Fleet) -> None:
    counted(fleet)
    busy = fleet.front.api.faults
    busy.per_second, busy.retry_after_s = 0.0, 30.0  # type: ignore[attr-defined]
    fleet.front.end_watches()
    fleet.run(600.0)
    refused = counted(fleet)
    assert asked(refused).keys() == {"watch pods 429", "watch nodes 429"}
    assert sum(refused.requests.values()) <= NODES * 2 * (1 + 600 / 30)
    busy.per_second = None  # type: ignore[attr-defined]
    fleet.run(60.0)
    assert fleet.settled()
    assert asked(counted(fleet)) == {"watch pods": NODES, "watch nodes": NODES}


def test_all_start_at_a_server_that_takes_few(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, NODES, pods=3)
    fleet.front.api.faults.per_second = 2.0  # type: ignore[attr-defined]
    fleet.start()
    fleet.settle(within_s=300.0)
    counts = counted(fleet)
    refused = sum(n for (_, _, code), n in counts.requests.items() if code == 429)
    assert refused <= 10 * NODES * 4
    fleet.close()


@pytest.mark.timeout(600)
def test_a_simulated_node_asks_what_a_real_agent_asks(tmp_path: Path) -> None:
    """The same requests in the same order; `build.py scale` tries more mishaps."""
    steps = ("start", "watches end", "history lost, refused")
    with tempfile.TemporaryDirectory(prefix="vs-") as short:  # for the paths of unix sockets
        real = real_agent.real(Path(short), [sys.executable, str(ROOT / "agent.py")], steps)
    simulated = real_agent.simulated(tmp_path, steps)
    assert real_agent.differences(real, simulated) == []
    assert all(real[step]["pods"] for step in steps)
