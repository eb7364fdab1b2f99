"""An app container may get the instance that an init container of its pod has: it has ended then.

HAMi's scheduler after 2.10 chooses one place for both.
"""

import pytest

from agent.errors import AgentError
from tests.unit.fakes import GPU_A, container
from tests.unit.mig_world import LARGE, SMALL, World, allocation, mig_pod

IDS = [f"{GPU_A}-0"]
SAME = {"NVIDIA_VISIBLE_DEVICES": "MIG-13"}


@pytest.fixture
def world() -> World:
    return World()


def bound(world: World, first: str, second: str) -> None:
    """A pod whose two containers were promised the same place."""
    made = (container("first", kind=first), container("second", kind=second))
    pair = allocation(6), allocation(6, container=1)
    world.bound(mig_pod("p", *pair, containers=made))


@pytest.mark.parametrize(
    ("first", "second", "handed_on"),
    [
        pytest.param("init", "app", True, id="init, then app"),
        pytest.param("init", "init", True, id="init, then init"),
        pytest.param("init", "sidecar", True, id="init, then sidecar"),
        pytest.param("app", "app", False, id="they run beside each other"),
        pytest.param("sidecar", "app", False, id="a sidecar runs on"),
        pytest.param("sidecar", "init", False, id="a sidecar runs beside an init"),
    ],
)
def test_who_never_runs_beside_it_hands_its_instance_on(
    world: World, first: str, second: str, handed_on: bool
) -> None:
    bound(world, first, second)
    process, keeper = world.life()
    assert process.allocate(*IDS) == SAME
    process.deliver()
    if handed_on:
        assert process.allocate(*IDS) == SAME
        assert process.allocate(*IDS) == SAME, "asked again"
    else:
        with pytest.raises(AgentError, match="where pod team/p has its instance"):
            process.allocate(*IDS)
    assert world.places() == {6: 1}
    assert world.counted.count("created") == 1
    keeper.step_once()
    assert world.places() == {6: 1}
    world.cluster.delete("uid-p")
    process.deliver()
    keeper.step_once()
    assert world.places() == {}


def test_it_is_handed_on_after_a_restart(world: World) -> None:
    bound(world, "init", "app")
    process, _ = world.life()
    process.allocate(*IDS)
    process, _ = world.life()
    assert process.allocate(*IDS) == SAME
    assert world.counted.count("created") == 1


def test_a_larger_instance_does_not_take_its_place(world: World) -> None:
    """The init container has not run yet when kubelet asks for the app's."""
    made = (container("load", kind="init"), container("main"))
    later = allocation(4, LARGE, container=1)
    world.bound(mig_pod("p", allocation(6), later, containers=made))
    process, _ = world.life()
    process.allocate(*IDS)
    process.deliver()
    with pytest.raises(AgentError, match="where pod team/p has its instance"):
        process.allocate(*IDS)
    (left,) = world.maker.instances.values()
    assert left.profile_id == SMALL.profile_id


def test_one_of_another_pod_is_not_handed_on(world: World) -> None:
    bound(world, "init", "app")
    process, _ = world.life()
    process.allocate(*IDS)
    process.deliver()
    process.allocate(*IDS)
    made = (container("first", kind="init"), container("second"))
    world.bound(mig_pod("q", allocation(6), allocation(6, container=1), containers=made))
    process.deliver()
    with pytest.raises(AgentError, match="where pod team/p has its instance"):
        process.allocate(*IDS)


@pytest.mark.parametrize("effect", ["journal", "erase"])
def test_what_was_handed_on_is_not_taken_back(world: World, effect: str) -> None:
    """The init container has its answer already."""
    bound(world, "init", "app")
    process, _ = world.life()
    process.allocate(*IDS)
    process.deliver()
    world.faults.once(effect, "error")
    with pytest.raises(AgentError):
        process.allocate(*IDS)
    assert world.places() == {6: 1}
    assert [one.container for one in world.book.book] == ["first"]
