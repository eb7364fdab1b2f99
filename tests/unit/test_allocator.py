"""Allocate: which container is served, in what order things are written, and conflicts."""

import threading
from dataclasses import replace

import pytest

from agent.domain.claims import TO_ALLOCATE
from agent.errors import ClusterUnavailable
from tests.unit.fakes import GPU_A, GPU_B, container, lock_of, pod, vgpu_ids
from tests.unit.scene import IDS, PHASE, READS, A, B, Scene


@pytest.fixture
def scene() -> Scene:
    return Scene()


# --- success -------------------------------------------------------------------------------------


def test_one_container(scene: Scene) -> None:
    mine = scene.bound(pod("p", f"{A};"))
    agent = scene.start()
    scene.cluster.requests.clear()
    scene.faults.effects.clear()
    envs = agent.allocate(*IDS)
    assert envs["NVIDIA_VISIBLE_DEVICES"] == GPU_A
    assert envs["CUDA_DEVICE_MEMORY_LIMIT_0"] == "3000m"
    assert scene.faults.effects == [
        "prepare",
        "create directory",
        "look at region",
        "read limits",
        "make region",
        "write limits",
        "journal",
        "erase",
        "remove lock",
        "mark answered",
    ]
    assert scene.now(mine).annotations[TO_ALLOCATE] == ";"
    assert scene.now(mine).annotations[PHASE] == "success"
    assert scene.cluster.lock_value is None
    assert agent.outcomes == ["granted"]
    assert scene.cluster.requests == ["erase", "remove lock"]  # two writes, no read


def test_several_containers_before_the_watch_brings_anything(scene: Scene) -> None:
    containers = container("i", 1, "init"), container("m"), container("n", 2)
    mine = scene.bound(pod("p", f"{A};{B};{A}{B};", *containers))
    agent = scene.start()
    scene.cluster.requests.clear()
    limits = [
        agent.allocate(*ids)["CUDA_DEVICE_MEMORY_LIMIT_0"]
        for ids in (IDS, IDS, vgpu_ids(GPU_B, 4, 5))
    ]
    assert limits == ["3000m", "5000m", "3000m"]
    assert scene.cluster.requests == ["erase", "erase", "erase", "remove lock"]
    assert scene.caches.directories.keys() == {"uid-p_i", "uid-p_m", "uid-p_n"}
    assert scene.now(mine).annotations[PHASE] == "success"


def test_the_lock_stays_while_containers_are_to_come(scene: Scene) -> None:
    mine = scene.bound(pod("p", f"{A};{B};", container("m"), container("n")))
    agent = scene.start()
    agent.allocate(*IDS)
    assert scene.cluster.lock_value == lock_of(mine)
    assert scene.now(mine).annotations[PHASE] == "allocating"


def test_a_pod_that_is_never_locked_leaves_the_lock_of_another_alone(scene: Scene) -> None:
    init_only = pod("i", f"{A};;", container("i", 1, "init"), container("m", 0), bind_time="1")
    scene.bound(init_only, locked=False)
    locked = scene.bound(pod("p", f"{B};"))
    agent = scene.start()
    assert agent.allocate(*IDS)["CUDA_DEVICE_MEMORY_LIMIT_0"] == "3000m"
    assert scene.cluster.lock_value == lock_of(locked)
    assert agent.allocate(*vgpu_ids(GPU_B, 0))["CUDA_DEVICE_MEMORY_LIMIT_0"] == "5000m"
    assert scene.cluster.lock_value is None


def test_a_stale_lock_does_not_give_the_wrong_pod(scene: Scene) -> None:
    gone = scene.bound(replace(pod("old", f"{B};"), phase="Failed"))
    mine = scene.bound(pod("p", f"{A};"), locked=False)
    agent = scene.start()
    assert agent.allocate(*IDS)["CUDA_DEVICE_MEMORY_LIMIT_0"] == "3000m"
    assert scene.cluster.lock_value == lock_of(gone)
    assert scene.now(mine).annotations[PHASE] == "success"


@pytest.mark.parametrize(
    ("value", "left"),
    [
        pytest.param("2025-10-20T03:07:02Z", None, id="legacy: anybody may"),
        pytest.param("2025-10-20T03:07:02Z,team,p", None, id="ours"),
        pytest.param("2025-10-20T03:07:02Z,team,p0", "2025-10-20T03:07:02Z,team,p0", id="p0's"),
        pytest.param("hello", "hello", id="unreadable"),
    ],
)
def test_whose_lock_is_removed(scene: Scene, value: str, left: str | None) -> None:
    scene.bound(pod("p", f"{A};"), locked=False)
    scene.cluster.lock(value)
    agent = scene.start()
    agent.allocate(*IDS)
    agent.settle()
    assert scene.cluster.lock_value == left


def test_a_lock_that_the_watch_has_not_brought_yet_is_removed_all_the_same(scene: Scene) -> None:
    agent = scene.start()
    mine = scene.bound(pod("p", f"{A};"))
    agent.view.saw_pod(scene.now(mine))  # the watch of the pods is faster than the node's
    agent.allocate(*IDS)
    assert scene.cluster.lock_value == lock_of(mine)
    agent.deliver()
    agent.finisher.step_once()
    assert scene.cluster.lock_value is None


# --- which pod -----------------------------------------------------------------------------------


def test_a_pod_that_the_watch_has_not_brought_is_read_once(scene: Scene) -> None:
    agent = scene.start()
    scene.bound(pod("p", f"{A};{B};", container("m"), container("n")))
    scene.cluster.requests.clear()
    agent.allocate(*IDS)
    agent.allocate(*vgpu_ids(GPU_B, 0))
    assert [verb for verb in scene.cluster.requests if verb in READS] == list(READS)
    assert scene.cluster.lock_value is None


def test_the_watch_is_given_a_moment(scene: Scene) -> None:
    agent = scene.start(watch_wait_s=10.0)
    agent.turns._clock = lambda: 0.0
    late = scene.bound(pod("p", f"{A};"))
    waker = threading.Timer(0.05, lambda: agent.view.saw_pod(scene.now(late)))
    waker.start()
    assert agent.allocate(*IDS, budget_s=2000.0)["CUDA_DEVICE_MEMORY_LIMIT_0"] == "3000m"
    waker.join()
    assert "list pods" not in scene.cluster.requests


def test_without_a_node_in_memory_it_is_read(scene: Scene) -> None:
    mine = scene.bound(pod("p", f"{A};"))
    agent = scene.start()
    agent.own_node.publish(None)
    agent.allocate(*IDS)
    assert "get node" in scene.cluster.requests
    assert scene.cluster.lock_value is None
    assert scene.now(mine).annotations[PHASE] == "success"


def test_a_hint_of_get_preferred_allocation_decides_between_two(scene: Scene) -> None:
    scene.bound(pod("p", f"{A};", bind_time="1"), locked=False)
    scene.bound(pod("q", f"{B};", bind_time="2"), locked=False)
    agent = scene.start()
    first = agent.turns.find(1, None, deadline_s=agent.clock() + 2)
    second = agent.view.pod("uid-q")
    assert first.pod.name == "p"
    assert second is not None
    agent.turns.prefer(tuple(IDS), replace(first, pod=second))
    assert agent.allocate(*IDS)["CUDA_DEVICE_MEMORY_LIMIT_0"] == "5000m"
    assert agent.allocate(*IDS)["CUDA_DEVICE_MEMORY_LIMIT_0"] == "3000m"


# --- conflicts -----------------------------------------------------------------------------------


def test_a_changed_annotation_is_read_and_decided_anew(scene: Scene) -> None:
    mine = scene.bound(pod("p", f"{A};"))
    agent = scene.start()
    scene.cluster.annotate(mine.uid, {TO_ALLOCATE: f"{B};"})  # the watch lags
    assert agent.allocate(*IDS)["CUDA_DEVICE_MEMORY_LIMIT_0"] == "5000m"
    assert scene.now(mine).annotations[PHASE] == "success"
    assert [record.claims[0].uuid for record in scene.grant_log.records()] == [GPU_B]


def test_a_pod_that_never_stops_changing(scene: Scene) -> None:
    mine = scene.bound(pod("p", f"{A};"))
    agent = scene.start()

    def change(effect: str) -> None:
        if effect == "erase":
            memory = len(scene.faults.effects)
            scene.cluster.annotate(mine.uid, {TO_ALLOCATE: f"{GPU_A},NVIDIA,{memory},0:;"})

    scene.faults.verdict = change
    with pytest.raises(ClusterUnavailable, match="changed 3 times"):
        agent.allocate(*IDS)
    assert scene.now(mine).annotations[PHASE] == "failed"
    assert scene.cluster.lock_value is None
    assert not scene.caches.directories


def test_an_erase_that_came_through_although_it_conflicts(scene: Scene) -> None:
    mine = scene.bound(pod("p", f"{A};"))
    agent = scene.start()
    scene.cluster.annotate(mine.uid, {TO_ALLOCATE: ";"})  # our own, whose answer was lost
    assert agent.allocate(*IDS)["CUDA_DEVICE_MEMORY_LIMIT_0"] == "3000m"
    assert scene.now(mine).annotations[PHASE] == "success"
    assert scene.cluster.lock_value is None


def test_calls_at_the_same_time_get_different_grants(scene: Scene) -> None:
    names = [f"m-{place}" for place in range(8)]
    claims = "".join(f"{GPU_A},NVIDIA,{1000 + place},0:;" for place in range(8))
    mine = scene.bound(pod("p", claims, *(container(name) for name in names)))
    agent = scene.start()
    given: list[str] = []

    def ask(place: int) -> None:
        given.append(agent.allocate(f"{GPU_A}-{place}")["CUDA_DEVICE_MEMORY_LIMIT_0"])

    threads = [threading.Thread(target=ask, args=(place,)) for place in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert sorted(given) == [f"{1000 + place}m" for place in range(8)]
    assert scene.now(mine).annotations[PHASE] == "success"


def test_kubelet_goes_on_with_the_pod_that_it_has_begun(scene: Scene) -> None:
    inits = container("i", 1, "init"), container("j", 1, "init"), container("m", 0)
    scene.bound(pod("early", f"{A};;;", *inits, bind_time="1"), locked=False)
    scene.bound(pod("begun", f"{B};{B};;", *inits, bind_time="2"), locked=False)
    agent = scene.start()
    turn = agent.turns.find(1, None, deadline_s=agent.clock() + 2)
    begun = agent.view.pod("uid-begun")
    assert begun is not None
    agent.turns.prefer(tuple(IDS), replace(turn, pod=begun))
    limits = [agent.allocate(device_id)["CUDA_DEVICE_MEMORY_LIMIT_0"] for device_id in (*IDS, *IDS)]
    assert limits == ["5000m", "5000m"]


def test_a_lock_taken_anew_for_the_same_pod_is_removed(scene: Scene) -> None:
    mine = scene.bound(pod("p", f"{A};"))
    agent = scene.start()
    scene.cluster.lock(lock_of(mine, "2025-10-20T03:07:04Z"))  # the watch lags
    agent.allocate(*IDS)
    assert scene.now(mine).annotations[PHASE] == "success"
    agent.finisher.step_once()
    assert scene.cluster.lock_value is None


def test_the_lock_of_the_next_pod_stays(scene: Scene) -> None:
    mine = scene.bound(pod("p", f"{A};"))
    agent = scene.start()
    scene.cluster.lock(lock_of(replace(mine, name="p2")))  # somebody freed ours, the watch lags
    agent.allocate(*IDS)
    agent.settle()
    assert scene.cluster.lock_value == lock_of(replace(mine, name="p2"))
    assert len(agent.finisher._open) == 0
