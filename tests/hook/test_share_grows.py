"""A kind of kernel that becomes longer is noticed, whatever else the program launches.

The same function and shape, with more to do: attention over a growing cache, beside matrix products.
The whole hook on a simulated GPU, in virtual time, as in test_share.py.
"""

from pathlib import Path

import pytest
from share_bed import BESIDE_POINTS, Grows, Kernels, Tenant, holds, run

GROWS = Grows(20, 500)
LATE_POINTS = 8  # in the second in which it becomes long, more than what is promised: 3; it was 15


@pytest.mark.parametrize(
    ("percent", "mix", "beside", "more"),
    [
        pytest.param(90, "c+g", 1000, "", id="beside 1 ms, at 90 %"),
        pytest.param(70, "c+g", 1000, "", id="beside 1 ms: it had all of the GPU"),
        pytest.param(70, "c+g", 1000, ",sync=4", id="waited for now and then"),
        pytest.param(70, "c+g+g+g", 1000, "", id="more of it than of the others"),
        pytest.param(50, "c+g", (50, 500), "", id="beside what varies: it took seconds"),
        pytest.param(30, "c+g+g+g+g+g", (30, 300), "", id="more of it than of what varies"),
    ],
)
def test_beside_what_is_measured_each_time(
    tmp_path: Path, percent: int, mix: str, beside: int | tuple[int, int], more: str
) -> None:
    """None of its launches was measured any more, as others were all the time."""
    kernels: Kernels = {"c": beside, "g": GROWS}
    tenant = Tenant(percent, (f"ms=4000,kernel={mix}{more}",))
    (container,) = run(tmp_path, [tenant], kernels, launch_us=2)
    assert holds([container]), container.percents(1, 1)


def test_in_a_pair(tmp_path: Path) -> None:
    kernels: Kernels = {"c": (50, 500), "g": GROWS, "b": 100}
    tenants = [Tenant(30, ("ms=4000,kernel=c+g",)), Tenant(70, ("ms=4000,kernel=b",))]
    containers = run(tmp_path, tenants, kernels, launch_us=2)
    assert holds(containers), [one.percents(1, 1) for one in containers]


@pytest.mark.parametrize(("threads", "streams"), [(1, 2), (2, 1), (1, 4)])
def test_on_several_streams_that_are_never_waited_for(
    tmp_path: Path, threads: int, streams: int
) -> None:
    """Their queues are 0.5 to 2 s long by the time that it is looked at again: it had all of the GPU for good."""
    tenant = Tenant(50, (f"ms=7000,kernel=g,streams={streams}",), threads=threads)
    (container,) = run(tmp_path, [tenant], {"g": GROWS}, launch_us=2)
    assert holds([container], skip_s=5), container.percents(1, 1)


def test_the_second_in_which_it_becomes_long_beside_others(tmp_path: Path) -> None:
    """Not within what is promised yet. Its launches went on what was taken when they were short, and were looked at once in 56 ms."""
    kernels: Kernels = {"c": 1000, "g": Grows(20, 500, 4000), "b": 100}
    tenants = [
        Tenant(30, ("ms=5000,kernel=g+g+g+g+g+c,sync=12",)),
        Tenant(70, ("ms=5000,kernel=b",)),
    ]
    one, _ = run(tmp_path, tenants, kernels, launch_us=2)
    percents = one.percents(1, 1)
    assert max(percents) <= 30 + LATE_POINTS, percents
    assert abs(percents[-1] - 30) <= BESIDE_POINTS, percents
