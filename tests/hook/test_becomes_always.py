"""What sweeps told of a stream's part of its time, once one of its kinds is measured always (gpu_read.c).

With what was told of the time before, kernels of 25 us that were once taken to be far longer now and then cost
7, and their container had 87 of 50 % for half a second.
"""

import subprocess

import pytest
from built_hook import ROOT
from c_programs import compiled


@pytest.mark.parametrize(
    ("expected_us", "longest_us", "measured_always", "part"),
    [
        pytest.param(20, 40, False, "0.25", id="all are alike"),
        pytest.param(
            20, 400, True, "0.00", id="one is far longer: measured always, nothing is known"
        ),
        pytest.param(6, 200, False, "0.25", id="far longer, but of a kind too short for that"),
    ],
)
def test_a_kind_that_is_measured_always_from_now_on_was_part_of_what_ran_beside_it(
    expected_us: int, longest_us: int, measured_always: bool, part: str
) -> None:
    program = compiled("becomes_always.c", f"-I{ROOT / 'hook'}", f"-I{ROOT / 'tests/hook'}")
    words = [program, str(expected_us), str(longest_us)]
    said = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    assert said.split() == [str(int(measured_always)), part]
