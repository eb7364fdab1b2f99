"""How often kinds of launches were measured, by which long ones are doubted (gpu_lane.c).

Two kinds in one place forgot each other at every launch: all that was long of either was taken for a
turn of others, and in a process in ten or so 30 % became 50.
"""

import subprocess

import pytest
from built_hook import ROOT
from c_programs import compiled

PLACES, WAYS = 256, 8  # of gpu_traces.h
SAME = PLACES << 32  # between kinds that belong in one place


def measured(keys: list[int]) -> list[int]:
    said = subprocess.run(
        [compiled("doubts.c", f"-I{ROOT / 'hook'}")],
        input="\n".join(map(str, keys)),
        capture_output=True,
        text=True,
        check=True,
    )
    return [int(line) for line in said.stdout.split()]


@pytest.mark.parametrize(
    "kinds",
    [
        pytest.param([1, 2], id="two of one place, told apart by the rest"),
        pytest.param([1, 1 + SAME], id="two of one place"),
        pytest.param([1, 1 + SAME, 1 + (1 << 32)], id="and one of the next"),
        pytest.param([1 + i * SAME for i in range(WAYS)], id="as many as there is room for"),
        pytest.param([1 + i * SAME + ((PLACES - 1) << 32) for i in range(WAYS)], id="at the end"),
    ],
)
def test_each_kind_is_counted_by_itself(kinds: list[int]) -> None:
    rounds = 5
    assert measured(kinds * rounds) == [n for n in range(1, rounds + 1) for _ in kinds]


def test_one_more_than_there_is_room_for_begins_anew() -> None:
    kinds = [1 + i * SAME for i in range(WAYS + 1)]
    assert measured([*kinds, kinds[-1], kinds[1]]) == [1] * (WAYS + 1) + [2, 2]
