"""When a container counts less than the driver sees of it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.domain.cross_check import MIB, Agreement, compared, tolerance_bytes
from agent.domain.region import RegionProcess, Usage

GIB = 1 << 30


def slot(context_bytes: int) -> RegionProcess:
    usage = Usage(context_bytes=context_bytes, module_bytes=0, data_bytes=0, total_bytes=0)
    return RegionProcess(pid=1, host_pid=0, status=1, used=(usage,))


MEASURED, UNMEASURED = slot(300 * MIB), slot(0)


@pytest.mark.parametrize(
    ("slots", "counted", "listed", "mib"),
    [
        pytest.param([], 0, 0, 0, id="nobody"),
        pytest.param([MEASURED], 0, 1, 64, id="a measured context"),
        pytest.param([UNMEASURED], 0, 1, 64 + 640, id="one not measured yet"),
        pytest.param([], 0, 1, 64, id="a process that does not count has no context to excuse it"),
        pytest.param([MEASURED, UNMEASURED], 0, 2, 128 + 640, id="one of two"),
        pytest.param([UNMEASURED] * 1024, 0, 1, 64 + 640, id="a thousand forged slots excuse one"),
        pytest.param([MEASURED], 20 * GIB, 1, 64 + 1024, id="and a part of what is counted"),
    ],
)
def test_how_much_more_is_nothing(
    slots: list[RegionProcess], counted: int, listed: int, mib: int
) -> None:
    assert tolerance_bytes(tuple(slots), 0, counted, listed) == mib * MIB


def after(*looks: tuple[int, int]) -> list[bool]:
    """What is said after each look; of each the driver's MiB and the counted MiB."""
    said, agreement = [], Agreement()
    for number, (driver, counted) in enumerate(looks, start=1):
        agreement = compared(
            agreement, driver_bytes=driver * MIB, counted_bytes=counted * MIB,
            tolerance_bytes=100 * MIB, look=number,
        )  # fmt: skip
        said.append(agreement.disagrees)
    return said


@pytest.mark.parametrize(
    ("looks", "said"),
    [
        pytest.param([(500, 500)] * 3, [False] * 3, id="the same"),
        pytest.param([(600, 500)] * 3, [False] * 3, id="as much more as may be"),
        pytest.param([(601, 500)] * 3, [False, True, True], id="more, seen twice"),
        pytest.param([(900, 500), (500, 500)] * 3, [False] * 6, id="now and then, never twice"),
        pytest.param([(0, 5000)] * 3, [False] * 3, id="less is no difference"),
        pytest.param([(900, 900), (900, 100), (100, 100)], [False] * 3, id="freed in between"),
        pytest.param(
            [(900, 900), (900, 700), (700, 500), (500, 300)],
            [False] * 4,
            id="freed piece by piece, and the driver was asked first",
        ),
        pytest.param([(900, 0)] * 2 + [(0, 0)] * 3, [False, True, True, False, False], id="over"),
        pytest.param(
            [(900, 0)] * 2 + [(0, 0), (900, 0)] * 2, [False] + [True] * 5, id="not over yet"
        ),
    ],
)
def test_what_is_said(looks: list[tuple[int, int]], said: list[bool]) -> None:
    assert after(*looks) == said


def test_the_same_look_counts_once() -> None:
    agreement = Agreement()
    for _ in range(5):
        agreement = compared(
            agreement, driver_bytes=9 * GIB, counted_bytes=0, tolerance_bytes=0, look=1
        )
    assert not agreement.disagrees


@given(st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 2000)), max_size=30))
def test_two_looks_in_a_row_are_needed_for_any_change(looks: list[tuple[int, int]]) -> None:
    said = [False, *after(*looks)]
    changes = [place for place in range(1, len(said)) if said[place] != said[place - 1]]
    assert all(later - earlier >= 2 for earlier, later in zip([0, *changes], changes, strict=False))
