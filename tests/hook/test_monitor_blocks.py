"""Blocks of HAMi's monitor, in virtual time: meant as long as it lives, and over soon after it died.

Containers 0, 1, ... are of priority 0, 1, ...; rounds come every 5 s. Steps are of 100 ms.
"""

import json
from pathlib import Path

import pytest
from share_bed import RECENT_KERNEL_AT, Change, Container, Monitor, Tenant, run

from agent.domain.container_use import ANSWERED_NS
from agent.domain.region import TAIL, TAIL_OFFSET

ASKED_AT = TAIL_OFFSET + TAIL["asked_at_ns"]
LATELY = 3  # steps until what was launched before has run
KERNEL = {"kernel": 5000}
ALWAYS = 10**6
LEASE_MS = ANSWERED_NS // 1_000_000  # the agent shows it blocked for as long as it waits


def works(container: Container, from_ms: int, to_ms: int) -> bool:
    """Whether it had the GPU in every step."""
    return all(container.worked_ns[from_ms // 100 : to_ms // 100])


def waits(container: Container, from_ms: int, to_ms: int) -> bool:
    """Whether it never had."""
    return not any(container.worked_ns[from_ms // 100 + LATELY : to_ms // 100])


def seen(directory: Path) -> tuple[list[list[int]], list[list[int]]]:
    """What the monitor found in the regions, and which priorities were active, by rounds."""
    rounds = [json.loads(line) for line in (directory / "rounds").read_text().splitlines()]
    return [one["found"] for one in rounds], [one["active"] for one in rounds]


@pytest.mark.parametrize(
    "percent", [pytest.param(50, id="share"), pytest.param(100, id="no limit")]
)
def test_a_monitor_that_lives_is_obeyed(tmp_path: Path, percent: int) -> None:
    """The first stops at 38 s, and is taken for active until the round at 45 s."""
    high = Tenant(percent, ("ms=38000,sync=4",), priority=0)
    low = Tenant(percent, ("ms=49000,sync=4",), priority=1)
    first, second = run(tmp_path, [high, low], KERNEL, monitor=Monitor(until_ms=ALWAYS // 20))
    assert works(second, 1000, 5000)
    assert waits(second, 5000, 45_000)
    assert works(second, 45_300, 48_500)
    assert works(first, 1000, 37_500)
    found, active = seen(tmp_path)
    assert [round_[1] for round_ in found] == [2, *[1] * 8]
    assert active == [[0, 1], *[[0]] * 7, []]  # who waits does not compute


def test_a_monitor_that_was_killed_blocks_nobody(tmp_path: Path) -> None:
    """Its last round was at 10 s, and was an answer; the more important one still computes."""
    high = Tenant(100, ("ms=20000,sync=4",), priority=0)
    low = Tenant(100, ("ms=20000,sync=4",), priority=1)
    first, second = run(tmp_path, [high, low], KERNEL, monitor=Monitor(until_ms=11_000))
    assert waits(second, 5000, 10_000 + LEASE_MS)
    assert works(second, 10_100 + LEASE_MS, 19_500)
    assert works(first, 1000, 19_500)
    assert second.recent_kernel == 2


@pytest.mark.parametrize("threads", [1, 3])
def test_all_processes_of_a_container_wait(tmp_path: Path, threads: int) -> None:
    """One of them begins while the other waits for the monitor's answer."""
    high = Tenant(100, ("ms=29000,sync=4",), priority=0)
    low = [
        Tenant(50, phases, threads=threads, container=1)
        for phases in (("ms=29000,sync=4",), ("ms=13000,kernel=none", "ms=16000,sync=4"))
    ]
    _, second = run(tmp_path, [high, *low], KERNEL, monitor=Monitor(until_ms=21_000))
    assert waits(second, 5000, 20_000 + LEASE_MS)
    assert works(second, 20_300 + LEASE_MS, 28_500)
    _, active = seen(tmp_path)
    assert active == [[0, 1], [0], [0], [0]]


def test_a_round_may_be_late(tmp_path: Path) -> None:
    tenants = [Tenant(100, ("ms=40000,sync=4",), priority=i) for i in range(2)]
    monitor = Monitor(until_ms=39_000, every_ms=LEASE_MS - 100)
    _, second = run(tmp_path, tenants, KERNEL, monitor=monitor)
    assert waits(second, 5000, 39_500)


def test_a_monitor_that_is_too_slow_blocks_again(tmp_path: Path) -> None:
    tenants = [Tenant(100, ("ms=30000,sync=4",), priority=i) for i in range(2)]
    _, second = run(tmp_path, tenants, KERNEL, monitor=Monitor(until_ms=29_000, every_ms=9000))
    for at_ms in (5000, 14_000):
        assert waits(second, at_ms, at_ms + LEASE_MS)
        assert works(second, at_ms + LEASE_MS + 300, at_ms + 9000)


def test_who_launched_nothing_is_not_taken_for_one_that_waits(tmp_path: Path) -> None:
    """It asks at 9.5 s and is let go at 10 s. In the round at 15 s it is counted down to 1."""
    high = Tenant(100, ("ms=3000,sync=4",), priority=0)
    computes, rests = "ms=1000,sync=4", "ms=5000,kernel=none"
    low = Tenant(100, ("ms=9500,kernel=none", computes, rests, computes, computes), priority=1)
    _, second = run(tmp_path, [high, low], KERNEL, monitor=Monitor(until_ms=30_000))
    assert waits(second, 9000, 10_000)
    assert works(second, 10_100, 10_500)
    assert works(second, 15_600, 17_000)
    found, _ = seen(tmp_path)
    assert [round_[1] for round_ in found[:3]] == [2, 1, 2]


@pytest.mark.parametrize(
    ("asked", "layout", "ends_ms"),
    [
        pytest.param(0, "<Q", 2000, id="nobody asked"),
        pytest.param(1 << 63, "<Q", 2000, id="in the far future"),
        pytest.param((1 << 64) - 1, "<Q", 2000, id="the last moment there is"),
        pytest.param(3_000_000_000, "<Qt", 3000 + LEASE_MS, id="soon"),
        pytest.param(0, "<Qt", LEASE_MS, id="before"),
    ],
)
def test_what_a_process_writes_there_blocks_it_for_no_longer(
    tmp_path: Path, asked: int, layout: str, ends_ms: int
) -> None:
    changes = [
        Change(1000, 0, "region", RECENT_KERNEL_AT, "<i", -1),
        Change(2000, 0, "region", ASKED_AT, layout, asked),
    ]
    (container,) = run(tmp_path, [Tenant(100, ("ms=12000,sync=4",))], KERNEL, changes)
    assert waits(container, 1000, ends_ms)
    assert works(container, ends_ms + 200, 11_500)
