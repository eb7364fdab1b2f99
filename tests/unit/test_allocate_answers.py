"""A grant that is made is given, however the end of its bind goes; and no lock is a lock less."""

from dataclasses import replace

import pytest

from tests.unit.fakes import container, pod
from tests.unit.scene import IDS, PHASE, A, Scene


@pytest.mark.parametrize(
    "verdict",
    [
        pytest.param("error", id="not done"),
        pytest.param("error after", id="done, but the answer was lost"),
    ],
)
def test_a_lock_that_cannot_be_removed_yet_costs_the_container_nothing(verdict: str) -> None:
    scene = Scene()
    mine = scene.bound(pod("p", f"{A};"))
    agent = scene.start()
    scene.faults.once("remove lock", verdict)
    assert agent.allocate(*IDS)["CUDA_DEVICE_MEMORY_LIMIT_0"] == "3000m"
    assert agent.outcomes == ["granted"]
    assert scene.now(mine).annotations[PHASE] == "success"
    agent.settle(60)
    assert scene.cluster.lock_value is None
    assert scene.now(mine).annotations[PHASE] == "success"
    assert len(agent.finisher._open) == 0


def test_whose_limits_hold_against_its_word_is_told_so_once() -> None:
    scene = Scene()
    mine = replace(container("main"), control_disabled="true")
    scene.bound(pod("p", f"{A};", mine))
    agent = scene.start()
    assert agent.allocate(*IDS) == agent.allocate(*IDS)
    assert [event.reason for event in scene.cluster.events] == ["DisableControlNotHonoured"]


def test_without_a_lock_there_is_none_to_remove() -> None:
    scene = Scene()
    mine = scene.bound(pod("p", f"{A};"), locked=False)
    agent = scene.start()
    assert agent.allocate(*IDS)["CUDA_DEVICE_MEMORY_LIMIT_0"] == "3000m"
    agent.settle(60)
    assert scene.now(mine).annotations[PHASE] == "success"
    assert "remove lock" not in scene.cluster.requests
