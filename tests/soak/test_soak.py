"""A day of a node, and that growth is told. `build.py soak` does thirty."""

from dataclasses import replace

import pytest

from agent import logs
from tests.soak.run import Day, objections_to, page, soak

DAY = Day(
    day=1, pods=700, grants=1400, refusals=9, agents=5, crashes=4, gpu_faults=2,
    kubelet_restarts=1, api_restarts=1, resident_kib=47_000, descriptors=110, threads=1,
    directories=50,
)  # fmt: skip


@pytest.mark.timeout(300)
def test_a_day() -> None:
    logs.configure(level="critical")
    try:
        seen, wrong = soak(1, 7, lambda _: None)
    finally:
        logs.configure()
    assert wrong == []
    assert seen[-1].grants > 500
    assert seen[-1].agents > 1


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
    assert (told or "nothing") in page(days, found, seed=1, took_s=60.0)
