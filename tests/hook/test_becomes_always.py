"""What sweeps told of a stream's part of its time, once one of its kinds is measured always (gpu_read.c).

With what was told of the time before, a kind that once seemed far longer now and then was charged too little.
"""

import subprocess

import pytest
from built_hook import ROOT
from c_programs import compiled


@pytest.mark.parametrize(
    ("words", "told"),
    [
        pytest.param("20 40", ["0 0.25 0.25"], id="all are alike"),
        pytest.param("20 400", ["1 0.00 0.00"], id="one is far longer: nothing is known"),
        pytest.param("6 200", ["0 0.25 0.25"], id="far longer, but too short a kind for that"),
        pytest.param("20 400 always", ["1 0.25 0.25"], id="it was one of them before"),
        pytest.param(
            "20 400 again",
            ["1 0.00 0.00", "1 0.25 0.25"],
            id="it comes and goes: told of such ones",
        ),
    ],
)
def test_a_kind_that_is_measured_always_from_now_on_was_part_of_what_ran_beside_it(
    words: str, told: list[str]
) -> None:
    program = compiled("becomes_always.c", f"-I{ROOT / 'hook'}", f"-I{ROOT / 'tests/hook'}")
    said = subprocess.run([program, *words.split()], capture_output=True, text=True, check=True)
    assert said.stdout.splitlines() == told
