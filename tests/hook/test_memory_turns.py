"""Memory of every kind, made, used and ended by threads that take turns at locks: never over the limit, all given back."""

import subprocess

import pytest
from built_hook import ROOT
from c_programs import HERE, compiled
from hooked_programs import LIMIT, Node

from agent.sim.driver import made_up_uuid

ROUNDS = 200
LIMIT_MIB = 64
FLAGS = (f"-I{ROOT / 'hook'}", f"-I{HERE}", "-rdynamic", "-lpthread", "-ldl")


def told(node: Node, seed: int, **env: str) -> tuple[list[int], int]:
    """What the program printed, and the most MiB that the driver has given at a time."""
    done = subprocess.run(
        [compiled("memory_turns.c", *FLAGS), str(ROUNDS), str(seed)], env=node.environment(**env),
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    return [int(word) for word in done.stdout.split()], node.sim.peak_mib(made_up_uuid(0))


@pytest.mark.parametrize("seed", range(1, 7))
def test_all_that_is_had_is_within_the_limit_and_given_back(node: Node, seed: int) -> None:
    (before_mib, after_mib, had, refused, wrong), peak_mib = told(
        node, seed, **{LIMIT: f"{LIMIT_MIB}m"}
    )
    assert (after_mib, wrong) == (before_mib, 0)
    assert had > ROUNDS
    assert refused > 0
    assert LIMIT_MIB / 2 < peak_mib <= LIMIT_MIB


def test_without_a_limit_it_is_over_that(node: Node) -> None:
    (*_, refused, wrong), peak_mib = told(node, 1)
    assert (refused, wrong) == (0, 0)
    assert peak_mib > LIMIT_MIB
