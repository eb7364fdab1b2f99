"""Allocate: the same question after a crash, or after kubelet has lost its books."""

from dataclasses import replace

import pytest

from agent.errors import ClusterUnavailable, NodeNotReady
from tests.unit.fakes import GPU_B, CrashError, container, pod, vgpu_ids
from tests.unit.scene import IDS, PHASE, READS, A, B, Scene


@pytest.fixture
def scene() -> Scene:
    return Scene()


EFFECTS = [
    "prepare",
    "create directory",
    "write limits",
    "journal",
    "erase",
    "remove lock",
    "mark answered",
]


@pytest.mark.parametrize("effect", EFFECTS)
@pytest.mark.parametrize("verdict", ["crash", "crash after"])
def test_the_same_question_after_a_crash(scene: Scene, effect: str, verdict: str) -> None:
    mine = scene.bound(pod("p", f"{A};"))
    first = scene.start()
    scene.faults.once(effect, verdict)
    with pytest.raises(CrashError):
        first.allocate(*IDS)
    journaled = [record.grant.envs for record in scene.grant_log.records()]
    second = scene.start()
    envs = second.allocate(*IDS)
    assert envs["CUDA_DEVICE_MEMORY_LIMIT_0"] == "3000m"
    assert not journaled or journaled == [envs]
    assert second.allocate(*IDS) == envs
    second.settle()
    assert scene.now(mine).annotations[PHASE] == "success"
    assert scene.cluster.lock_value is None
    assert [record.answered for record in scene.grant_log.records()] == [True]
    assert scene.caches.directories.keys() == {"uid-p_main"}


@pytest.mark.parametrize("effect", EFFECTS)
@pytest.mark.parametrize("verdict", ["crash", "crash after"])
def test_a_crash_after_which_nobody_asks_again(scene: Scene, effect: str, verdict: str) -> None:
    mine = scene.bound(pod("p", f"{A};"))
    first = scene.start()
    scene.faults.once(effect, verdict)
    with pytest.raises(CrashError):
        first.allocate(*IDS)
    scene.cluster.put(replace(scene.now(mine), phase="Failed"))  # kubelet lost the connection
    scene.start().settle()
    assert scene.cluster.lock_value is None
    assert scene.now(mine).annotations[PHASE] in ("success", "failed")


def test_a_repeated_answer_is_checked_against_the_cluster(scene: Scene) -> None:
    mine = scene.bound(pod("p", f"{A};"))
    agent = scene.start()
    agent.allocate(*IDS)
    scene.cluster.delete(mine.uid)  # its ids are free, but the watch has not told yet
    late = scene.bound(pod("q", f"{B};"))
    assert agent.allocate(*IDS)["CUDA_DEVICE_MEMORY_LIMIT_0"] == "5000m"
    assert scene.now(late).annotations[PHASE] == "success"


def test_an_answer_for_a_running_pod_changes_nothing(scene: Scene) -> None:
    mine = scene.bound(pod("p", f"{A};"))
    agent = scene.start()
    envs = agent.allocate(*IDS)
    scene.cluster.put(replace(scene.now(mine), phase="Running"))
    scene.cluster.requests.clear()
    assert agent.allocate(*IDS) == envs  # kubelet has lost its books, the container restarts
    agent.settle()
    assert agent.outcomes == ["granted", "repeated"]
    assert scene.cluster.requests == list(READS)


OTHER = "hami.io/dcu-devices-to-allocate"


def test_a_bind_that_was_open_when_the_agent_crashed_ends_after_a_repeated_answer(
    scene: Scene,
) -> None:
    mine = scene.bound(pod("p", f"{A};", annotations={OTHER: "D,DCU,1,1:;"}))
    first = scene.start()
    first.allocate(*IDS)
    assert scene.now(mine).annotations[PHASE] == "allocating"  # another vendor's plugin is to come
    second = scene.start()
    second.allocate(*IDS)
    second.settle()
    assert second.outcomes == ["repeated"]
    assert scene.now(mine).annotations[PHASE] == "success"
    assert scene.cluster.lock_value is None


def test_a_crash_while_a_grant_is_taken_back_leaves_the_journal(scene: Scene) -> None:
    scene.bound(pod("p", f"{A};"))
    first = scene.start()
    scene.faults.verdict = {"erase": "error", "discard directory": "crash"}.get
    with pytest.raises(CrashError):
        first.allocate(*IDS)
    assert len(scene.grant_log.records()) == 1, "else nobody would know of the directory"
    assert scene.caches.directories


def test_the_disk_refuses_a_repeated_answer_without_ending_the_bind(scene: Scene) -> None:
    mine = scene.bound(pod("p", f"{A};"))
    agent = scene.start()
    agent.allocate(*IDS)
    scene.faults.once("create directory", "error")
    with pytest.raises(NodeNotReady):
        agent.allocate(*IDS)
    assert scene.now(mine).annotations[PHASE] == "success"
    assert scene.caches.directories.keys() == {"uid-p_main"}


def test_a_lost_answer_cannot_be_given_while_the_cluster_cannot_be_asked(scene: Scene) -> None:
    mine = scene.bound(pod("p", f"{A};{B};", container("m"), container("n")))
    first = scene.start()
    scene.faults.once("erase", "crash after")
    with pytest.raises(CrashError):
        first.allocate(*IDS)
    second = scene.start()
    scene.faults.verdict = lambda effect: "error" if effect in READS else None
    with pytest.raises(ClusterUnavailable, match="cannot be asked"):
        second.allocate(*IDS)
    assert scene.now(mine).annotations[PHASE] == "failed"  # else n's slot would be given to others
    assert scene.cluster.lock_value is None


def test_a_container_that_kubelet_admits_anew_with_other_ids(scene: Scene) -> None:
    scene.bound(pod("p", f"{A};"))
    first = scene.start()
    scene.faults.once("journal", "crash after")
    with pytest.raises(CrashError):
        first.allocate(*IDS)
    second = scene.start()
    others = vgpu_ids(GPU_B, 7)
    envs = second.allocate(*others)
    assert [record.device_ids for record in scene.grant_log.records()] == [tuple(others)]
    assert scene.start().allocate(*others) == envs
