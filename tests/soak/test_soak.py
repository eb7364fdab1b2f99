"""A day of a node, and that growth is told. `build.py soak` does thirty."""

from dataclasses import replace

import pytest

from agent import logs
from tests.soak.run import Day, objections_to, page, slope, soak

ABOUT = {"commit": "1234abc", "date": "2026-01-31", "machine": "2 x processors"}

DAY = Day(
    day=1, pods=700, grants=1400, refusals=9, agents=5, crashes=4, gpu_faults=2,
    kubelet_restarts=1, api_restarts=1, resident_kib=47_000, blocks=150_000, malloc_kib=7000, heap_kib=25_000, descriptors=110, threads=1,
    directories=50,
)  # fmt: skip


@pytest.mark.timeout(600)
def test_a_day() -> None:
    logs.configure(level="critical")
    try:
        seen, wrong = soak(1, 7, lambda _: None)
    finally:
        logs.configure()
    assert wrong == []
    assert seen[-1].grants > 500
    assert seen[-1].agents > 1
    assert seen[-1].blocks > 10_000


@pytest.mark.parametrize(
    ("last", "told"),
    [
        pytest.param(DAY, "", id="nothing grew"),
        pytest.param(replace(DAY, directories=60, descriptors=130), "", id="more containers"),
        pytest.param(replace(DAY, resident_kib=50_000), "memory grew by 3000", id="memory"),
        pytest.param(replace(DAY, threads=2), "threads", id="a thread"),
        pytest.param(replace(DAY, descriptors=111), "1 descriptors", id="a descriptor"),
        pytest.param(
            replace(DAY, day=2, pods=1400, grants=1410),
            "only 10 grants for 700 pods on day 2",
            id="no more grants",
        ),
        pytest.param(replace(DAY, day=2, pods=1400, grants=2800), "", id="more grants"),
    ],
)
def test_what_grows_or_ends_is_told(last: Day, told: str) -> None:
    days = [DAY] * 6 + [last]
    found = objections_to(days)
    assert bool(found) == bool(told)
    assert told in "".join(found)
    assert (told or "nothing") in page(days, found, ABOUT, seed=1, took_s=60.0)


@pytest.mark.parametrize(
    ("kib", "blocks", "told"),
    [
        pytest.param(0, 0, "", id="flat"),
        pytest.param(12, 0, "", id="pages of the allocator"),
        pytest.param(40, 0, "resident memory, KiB grew by 40.0 a day", id="memory of no block"),
        pytest.param(12, 700, "blocks that Python holds grew by 700.0 a day", id="one a pod"),
        pytest.param(-40, -700, "", id="less each day"),
    ],
)
def test_what_grows_slowly_is_told(kib: int, blocks: int, told: str) -> None:
    """Also below the 2 MiB that a run may gain, and with the noise of more and less containers."""
    days = [
        replace(
            DAY, day=n, pods=700 * n, grants=1400 * n,
            resident_kib=47_000 + kib * n + 60 * (n % 2), blocks=150_000 + blocks * n + 900 * (n % 2),
        )
        for n in range(1, 31)
    ]  # fmt: skip
    found = objections_to(days)
    slow = "".join(one for one in found if "a day" in one)
    assert bool(slow) == bool(told)
    assert told.partition(" grew")[0] in slow
    shown = page(days, found, ABOUT, seed=1, took_s=60.0)
    assert "- commit: 1234abc" in shown
    assert f"| resident memory, KiB | {slope(days, lambda day: day.resident_kib):+.1f} |" in shown


def test_what_more_containers_explain_is_no_growth() -> None:
    """Each has a page of its own, and there may be more of them in the end than at first."""
    days = [
        replace(
            DAY, day=n, directories=n + 9 * (n % 3), resident_kib=47_000 + 40 * (n + 9 * (n % 3))
        )
        for n in range(1, 31)
    ]
    assert slope(days, lambda day: day.resident_kib) == pytest.approx(0.0, abs=0.01)
    grown = [replace(day, resident_kib=day.resident_kib + 33 * day.day) for day in days]
    assert slope(grown, lambda day: day.resident_kib) == pytest.approx(33.0, abs=0.01)


def test_a_few_days_have_no_slope() -> None:
    shown = page([DAY], [], ABOUT, seed=1, took_s=60.0)
    assert "| blocks that Python holds | too few days | 200 |" in shown
