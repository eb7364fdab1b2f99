"""The end of a bind: several vendors, binds that a crash left behind, and the loop."""

import threading
from dataclasses import replace

import pytest

from agent.domain.pods import Pod
from agent.errors import MalformedAnnotation
from agent.services.bind_finisher import IDLE_S
from agent.supervisor import Lifeline
from tests.unit.fakes import container, lock_of, pod
from tests.unit.scene import IDS, PHASE, A, Scene
from tests.waiting import eventually


@pytest.fixture
def scene() -> Scene:
    return Scene()


OTHER = "hami.io/dcu-devices-to-allocate"


def test_another_vendor_ends_the_bind_itself(scene: Scene) -> None:
    mine = scene.bound(pod("p", f"{A};", annotations={OTHER: "D,DCU,1,1:;"}))
    agent = scene.start()
    agent.allocate(*IDS)
    assert scene.cluster.lock_value == lock_of(mine)  # the other plugin needs it to find the pod
    assert scene.now(mine).annotations[PHASE] == "allocating"
    scene.cluster.annotate(mine.uid, {OTHER: ";", PHASE: "success"})
    scene.cluster.lock(None)
    agent.settle()
    assert scene.cluster.requests.count("patch phase") == 0
    assert scene.cluster.requests.count("remove lock") == 0
    assert len(agent.finisher._open) == 0


@pytest.mark.parametrize("through", [True, False])
def test_another_vendor_does_not_end_the_bind(scene: Scene, *, through: bool) -> None:
    mine = scene.bound(pod("p", f"{A};", annotations={OTHER: "D,DCU,1,1:;"}))
    agent = scene.start()
    agent.allocate(*IDS)
    if through:
        scene.cluster.annotate(mine.uid, {OTHER: ";"})
        agent.deliver()
        agent.finisher.step_once()  # at once
    else:
        agent.finisher.step_once()
        assert scene.cluster.lock_value == lock_of(mine)
        agent.settle(4)  # it has had its time
    assert scene.cluster.lock_value is None
    assert scene.now(mine).annotations[PHASE] == "success"


@pytest.mark.parametrize(
    ("left", "phase"),
    [
        pytest.param(replace(pod("p", ";"), phase="Running"), "success", id="all handed out"),
        pytest.param(replace(pod("p", f"{A};"), phase="Failed"), "failed", id="kubelet gave it up"),
        pytest.param(replace(pod("p", ";"), phase="Failed"), "failed", id="emptied by others"),
        pytest.param(pod("p", f"{A};", phase="failed"), "failed", id="only the lock is left"),
    ],
)
def test_a_lock_left_behind_is_freed(scene: Scene, left: Pod, phase: str) -> None:
    mine = scene.bound(left)
    agent = scene.start()
    agent.finisher.step_once()
    assert scene.cluster.lock_value is not None  # somebody may be at work on it
    agent.settle(5)
    assert scene.cluster.lock_value is None
    assert scene.now(mine).annotations[PHASE] == phase


LEGACY = "2025-10-20T03:07:02Z"  # the bind time that `pod` gives; it names nobody
EARLIER = "1760929600"  # 22 s before


@pytest.mark.parametrize(
    ("ended", "phase"),
    [
        pytest.param(replace(pod("p", f"{A};"), phase="Failed"), "failed", id="kubelet gave it up"),
        pytest.param(pod("p", f"{A};", phase="failed"), "failed", id="failed, written"),
        pytest.param(replace(pod("p", ";"), phase="Running"), "success", id="handed out"),
        pytest.param(pod("p", ";", phase="success"), "success", id="handed out, written"),
    ],
)
def test_a_legacy_lock_goes_with_the_bind_it_was_taken_for(
    scene: Scene, ended: Pod, phase: str
) -> None:
    mine = scene.bound(ended, locked=False)
    scene.cluster.lock(LEGACY)
    agent = scene.start()
    agent.settle(5)
    assert scene.cluster.lock_value == LEGACY  # it may be of a pod that is not bound yet
    agent.settle(10)
    assert scene.cluster.lock_value is None
    assert scene.now(mine).annotations[PHASE] == phase


def test_a_legacy_lock_whose_pod_was_deleted(scene: Scene) -> None:
    mine = scene.bound(pod("p", f"{A};"), locked=False)
    scene.cluster.lock(LEGACY)
    agent = scene.start()
    agent.finisher.step_once()
    scene.cluster.delete(mine.uid)
    agent.settle(15)
    assert scene.cluster.lock_value is None


def failed(**bind_time: str) -> Pod:
    return replace(pod("p", f"{A};", **bind_time), phase="Failed")


@pytest.mark.parametrize(
    "pods",
    [
        pytest.param([failed(), pod("q", f"{A};")], id="another pod is being bound"),
        pytest.param([failed(bind_time=EARLIER)], id="taken after the pod was bound"),
        pytest.param([failed(bind_time="soon")], id="no telling when it was bound"),
        pytest.param([pod("p", f"{A};")], id="the pod is still to be served"),
        pytest.param(
            [replace(failed(), containers=(container("i", 1, "init"), container("m", 0)))],
            id="a pod that is never locked for",
        ),
        pytest.param([], id="nobody"),
    ],
)
def test_a_legacy_lock_that_may_be_in_use_stays(scene: Scene, pods: list[Pod]) -> None:
    for made in pods:
        scene.bound(made, locked=False)
    scene.cluster.lock(LEGACY)
    agent = scene.start()
    agent.settle(60)
    assert scene.cluster.lock_value == LEGACY
    assert len(agent.finisher._open) == 0


def test_an_emptied_annotation_is_no_success_while_kubelet_is_to_ask(scene: Scene) -> None:
    mine = scene.bound(pod("p", ";"))
    agent = scene.start()
    agent.settle(10)
    assert scene.now(mine).annotations[PHASE] == "allocating"
    with pytest.raises(MalformedAnnotation, match="names no vGPU"):
        agent.allocate(*IDS)
    assert scene.now(mine).annotations[PHASE] == "failed"
    assert scene.cluster.lock_value is None


def test_what_is_on_record_was_handed_out(scene: Scene) -> None:
    mine = scene.bound(pod("p", f"{A};"))
    scene.start().allocate(*IDS)
    scene.cluster.annotate(mine.uid, {PHASE: "allocating"})  # as if it had not been written
    scene.cluster.lock(lock_of(mine))
    scene.start().settle(5)
    assert scene.now(mine).annotations[PHASE] == "success"
    assert scene.cluster.lock_value is None


def test_a_pod_that_failed_without_a_lock_ends_its_bind(scene: Scene) -> None:
    mine = scene.bound(replace(pod("p", f"{A};"), phase="Failed"), locked=False)
    scene.start().settle(10)
    assert scene.now(mine).annotations[PHASE] == "failed"


def test_the_lock_of_a_pod_that_was_deleted_is_freed(scene: Scene) -> None:
    mine = scene.bound(pod("p", f"{A};"))
    agent = scene.start()
    agent.finisher.step_once()
    scene.cluster.delete(mine.uid)
    agent.settle(5)
    assert scene.cluster.lock_value is None


def test_a_pod_that_was_deleted_ends_no_lock_that_was_taken_since(scene: Scene) -> None:
    mine = scene.bound(pod("p", f"{A};"))
    agent = scene.start()
    agent.finisher.step_once()
    scene.cluster.delete(mine.uid)
    scene.cluster.lock("2025-10-20T03:07:02Z,team,not-bound-yet")
    scene.cluster.requests.clear()
    agent.settle(20)
    assert scene.cluster.lock_value == "2025-10-20T03:07:02Z,team,not-bound-yet"
    assert scene.cluster.requests == []


def test_it_sleeps_until_the_next_bind_is_due_and_no_longer(scene: Scene) -> None:
    agent = scene.start()
    assert agent.finisher.step_once() == IDLE_S
    scene.bound(pod("p", f"{A};", annotations={OTHER: "D,DCU,1,1:;"}))
    agent.deliver()
    agent.allocate(*IDS)
    due_s = agent.finisher.step_once()
    assert 0 < due_s < IDLE_S
    scene.clock.now_s += due_s
    agent.finisher.step_once()
    assert scene.cluster.lock_value is None


@pytest.mark.parametrize(
    ("taken_at", "freed"),
    [
        pytest.param("2025-10-20T03:07:02Z", True, id="its own"),
        pytest.param("2025-10-20T03:07:32Z", False, id="a later one of its name's"),
    ],
)
def test_a_lock_that_was_seen_only_when_its_pod_was_gone(
    scene: Scene, taken_at: str, *, freed: bool
) -> None:
    """The watch of the Node is late, and the pod is deleted as soon as it has its grant."""
    mine = scene.bound(pod("p", f"{A};"), locked=False)
    agent = scene.start()
    scene.cluster.lock(lock_of(mine, taken_at))
    agent.allocate(*IDS)
    assert len(agent.finisher._open) == 1
    agent.pods.update(lambda table: table.without(mine.uid))
    scene.cluster.delete(mine.uid)
    agent.settle(20)
    assert (scene.cluster.lock_value is None) == freed
    assert len(agent.finisher._open) == 0


def test_locks_that_are_not_ours_to_free(scene: Scene) -> None:
    scene.bound(pod("waits", f"{A};"))
    agent = scene.start()
    agent.settle(30)
    assert scene.cluster.lock_value is not None
    scene.bound(pod("other-vendor", ";", container("m", 0)))
    agent.settle(30)
    assert scene.cluster.lock_value is not None
    scene.cluster.lock("2025-10-20T03:07:02Z,team,not-bound-yet")
    agent.settle(30)
    assert scene.cluster.lock_value is not None


def test_the_loop_wakes_up_for_a_bind_and_stops(scene: Scene) -> None:
    mine = scene.bound(pod("p", "a,b:;"))
    agent = scene.start()
    stop = threading.Event()
    life = Lifeline(stop)
    thread = threading.Thread(target=agent.finisher.run, args=(life,))
    thread.start()
    try:
        with pytest.raises(MalformedAnnotation):
            agent.allocate(*IDS, budget_s=0.05)  # no time left for the exit door
        eventually(lambda: scene.cluster.lock_value is None)
        assert scene.now(mine).annotations[PHASE] == "failed"
    finally:
        stop.set()
        life.interrupt()
        thread.join(10)
    assert not thread.is_alive()


def test_idle_costs_no_request(scene: Scene) -> None:
    scene.bound(replace(pod("p", ";", phase="success"), phase="Running"), locked=False)
    agent = scene.start()
    scene.cluster.requests.clear()
    agent.settle(600)
    assert scene.cluster.requests == []
