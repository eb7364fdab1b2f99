"""Random histories of a node: every container gets exactly its own grant, no lock stays behind."""

import random
from collections.abc import Iterator

import pytest

from agent import logs
from tests.wire.history_world import Chances, World

QUIET = Chances()
LAGGING = Chances(watch=0.1)
MIXED = Chances(watch=0.3, other_vendor=0.3, rejected=0.05)
FAULTY = Chances(watch=0.4, error=0.03, other_vendor=0.2, rejected=0.03)
CRASHING = Chances(watch=0.4, crash=0.03, other_vendor=0.2)
ALL = Chances(watch=0.3, error=0.03, crash=0.03, other_vendor=0.3, rejected=0.03)


@pytest.fixture(autouse=True)
def _few_words() -> Iterator[None]:
    """Thousands of grants would be thousands of lines."""
    logs.configure(level="error")
    yield
    logs.configure()


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize(
    "chances",
    [
        pytest.param(QUIET, id="nothing goes wrong"),
        pytest.param(LAGGING, id="the watches lag"),
        pytest.param(MIXED, id="several vendors, kubelet rejects"),
        pytest.param(FAULTY, id="errors at any effect"),
        pytest.param(CRASHING, id="crashes at any effect"),
        pytest.param(ALL, id="everything at once"),
    ],
)
def test_every_container_gets_its_own_grant(chances: Chances, seed: int) -> None:
    world = World(random.Random(seed), chances)  # noqa: S311 - a history that can be repeated
    world.run(400)
    world.come_to_rest()
    world.check_all()
    if not (chances.error or chances.crash or chances.rejected):
        assert not world.errors
        assert world.answered.keys() == world.scheduled.keys()
    world.check_the_end()
    assert len(world.answered) > 20
