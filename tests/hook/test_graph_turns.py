"""Launches of graphs that allocate, by threads that take turns at any place: what the driver has is charged before.

`graph_launches.c`, `graphs.c` and `reserve.c` over a model of the driver, interleaved by a seed: whenever one
thread has let go of a lock or calls the driver, another may go on with a launch, an upload, a free or a trim.
"""

import subprocess

import pytest
from built_hook import ROOT
from c_programs import compiled

ROUNDS, CALLS = 3_000, 100  # a round: five threads, twenty calls each
HOOK = ROOT / "hook"
FLAGS = (
    f"-I{HOOK}",
    *(str(HOOK / name) for name in ("depth.c", "graph_left.c", "table.c")),
    "-lpthread",
)


@pytest.mark.parametrize("seed", range(1, 9))
def test_never_more_than_is_charged(seed: int) -> None:
    program = compiled("graph_turns.c", *FLAGS)
    said = subprocess.check_output([program, str(seed), str(ROUNDS)], text=True, timeout=60)
    launched, uncharged_mib, unused_mib = map(int, said.split())
    assert launched > ROUNDS * CALLS / 10
    assert (uncharged_mib, unused_mib) == (0, 0)
