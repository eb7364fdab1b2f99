"""A process with several contexts on a GPU gets one share: contexts take turns there as processes do.

What one of them had was once taken for somebody else's time, and not charged: two had up to twice
the share. As in test_share.py, the GPU itself says.
"""

from pathlib import Path

import pytest
from share_bed import ALONE_POINTS, Microseconds, Tenant, holds, run

SKIP_S = 2  # until it is known that there are several

ALONE = [
    pytest.param(30, 2, 20, "", id="20 us, 30 %: 35 had"),
    pytest.param(90, 2, 20, "", id="20 us, 90 %"),
    pytest.param(90, 2, 15, "", id="15 us, 90 %"),
    pytest.param(30, 2, 50, "", id="50 us: 44 had"),
    pytest.param(90, 2, 50, "", id="50 us, 90 %"),
    pytest.param(10, 2, 500, "", id="500 us, 10 %"),
    pytest.param(90, 2, 500, "", id="500 us, 90 %: all of it"),
    pytest.param(30, 2, 3000, "", id="3 ms: 58 had"),
    pytest.param(50, 2, 3000, "", id="3 ms, 50 %"),
    pytest.param(30, 2, (20, 2000), "", id="20 us to 2 ms: 48 had"),
    pytest.param(90, 2, (20, 2000), "", id="20 us to 2 ms, 90 %"),
    pytest.param(30, 2, (5, 300), "", id="5 to 300 us"),
    pytest.param(30, 4, 20, "", id="four contexts, 20 us"),
    pytest.param(29.9, 4, 20, "", id="four contexts, 20 us, 29.9 %: 27.5 had"),
    pytest.param(89.7, 2, 20, "", id="20 us, 89.7 %: 86.5 had"),
    pytest.param(89.7, 2, 15, "", id="15 us, 89.7 %: 87.4 had"),
    pytest.param(30.4, 2, 20, "", id="20 us, 30.4 %: 32.4 had"),
    pytest.param(30, 2, 10, "", id="10 us"),
    pytest.param(30, 3, (10, 200, 40), "", id="three contexts, one in 40 is long"),
    pytest.param(50, 3, (2, 20), "streams=2", id="three contexts of two streams"),
    pytest.param(90, 4, 50, "", id="four contexts, 50 us"),
    pytest.param(30, 4, 3000, "", id="four contexts, 3 ms"),
    pytest.param(90, 2, 20, "streams=0", id="the default stream of each"),
    pytest.param(30, 2, 500, "streams=4", id="four streams in each"),
    pytest.param(30, 2, 20, "sync=1", id="each waited for"),
    pytest.param(90, 2, 500, "sync=8", id="waited for now and then"),
]


def phase(contexts: int, more: str = "", kernel: str = "kernel") -> tuple[str, ...]:
    return (f"ms=5000,kernel={kernel},contexts={contexts},{more}".rstrip(","),)


@pytest.mark.parametrize(("percent", "contexts", "us", "more"), ALONE)
def test_alone(tmp_path: Path, percent: float, contexts: int, us: Microseconds, more: str) -> None:
    tenant = Tenant(percent, phase(contexts, more), threads=contexts)
    containers = run(tmp_path, [tenant], {"kernel": us})
    assert containers[0].results == [0]
    assert holds(containers, skip_s=SKIP_S), containers[0].worst_error(skip_s=SKIP_S)


@pytest.mark.parametrize("us", [13, 14, 15])
def test_where_each_waits_for_the_others_turn(tmp_path: Path, us: int) -> None:
    """Turns are as short as launches."""
    (container,) = run(tmp_path, [Tenant(30, phase(2), threads=2)], {"kernel": us})
    assert holds([container], skip_s=SKIP_S), container.worst_error(skip_s=SKIP_S)


def test_two_threads_in_each(tmp_path: Path) -> None:
    containers = run(tmp_path, [Tenant(30, phase(2), threads=4)], {"kernel": 20})
    assert holds(containers, skip_s=SKIP_S), containers[0].worst_error(skip_s=SKIP_S)


@pytest.mark.parametrize("us", [20, 300, 3000, (20, 2000)], ids=str)
@pytest.mark.parametrize("percents", [(30, 70), (70, 30)], ids=str)
def test_beside_another(tmp_path: Path, percents: tuple[int, int], us: Microseconds) -> None:
    """The one with two contexts had 57 of its 30 %, which the other lost."""
    tenants = [
        Tenant(percents[0], phase(2, kernel="a"), threads=2),
        Tenant(percents[1], phase(1, kernel="b")),
    ]
    containers = run(tmp_path, tenants, {"a": us, "b": 100})
    found = [one.worst_error(skip_s=SKIP_S) for one in containers]
    assert holds(containers, skip_s=SKIP_S), found


@pytest.mark.parametrize("us", [50, 3000])
def test_of_more_than_four_contexts_never_more(tmp_path: Path, us: int) -> None:
    """Launches in the fifth and later ones are waited for (docs/compute-share.md)."""
    (one,) = run(tmp_path, [Tenant(30, phase(8), threads=8)], {"kernel": us})
    found = one.percents(1, SKIP_S)
    assert max(found) <= 30 + ALONE_POINTS, found
    assert min(found) > 20, found


def test_with_the_limiter_off_the_same_judgement_fails(tmp_path: Path) -> None:
    tenant = Tenant(30, phase(2), threads=2, policy="disable")
    assert not holds(run(tmp_path, [tenant], {"kernel": 500}), skip_s=SKIP_S)
