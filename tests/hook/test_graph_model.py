"""Graphs at random, with the simulated GPU as oracle: never over the limit, and agreeing at rest."""

import pytest
from hooked_programs import LIMIT, Node

from agent.sim.driver import made_up_uuid

GPU = made_up_uuid(0)
BEGIN = "from cuda_calls import *\nfrom graph_tenant import *\nstart()\n"
STEPS = 80


@pytest.mark.parametrize(
    ("seed", "limit_mib"),
    [
        pytest.param(64, 64, id="one at a time"),
        pytest.param(100, 100, id="two"),
        pytest.param(1034, 96, id="uploaded ones"),
        pytest.param(200, 200, id="many"),
    ],
)
def test_whatever_graphs_do_the_limit_holds(node: Node, seed: int, limit_mib: int) -> None:
    """Another seed is another test: nothing here is known to fail with any."""
    said = node.run(f"{BEGIN}say(wrong=disagreement({seed}, {STEPS}))", **{LIMIT: f"{limit_mib}m"})
    assert said["rc"] == 0, said["stderr"]
    assert said["wrong"] == ""
    assert node.sim.peak_mib(GPU) <= limit_mib


@pytest.mark.parametrize(
    ("seed", "limit_mib"),
    [
        pytest.param(7, 100, id="two"),
        pytest.param(9, 160, id="some"),
        pytest.param(11, 256, id="many"),
    ],
)
def test_who_frees_at_its_launch_finds_room_for_that_and_the_limit_holds(
    node: Node, seed: int, limit_mib: int
) -> None:
    """Flag AUTO_FREE_ON_LAUNCH; again, any seed will do."""
    steps = f"say(wrong=disagreement({seed}, {STEPS}, auto_free=True))"
    said = node.run(f"{BEGIN}{steps}", **{LIMIT: f"{limit_mib}m"})
    assert said["rc"] == 0, said["stderr"]
    assert said["wrong"] == ""
    assert node.sim.peak_mib(GPU) <= limit_mib
