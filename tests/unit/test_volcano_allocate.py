"""Allocate in Volcano's dialect: what is written in which order, crashes, faults, the lock."""

from dataclasses import replace

import pytest

from agent.domain.asked import Asked
from agent.domain.pods import Container, Pod
from agent.domain.volcano import (
    BIND_PHASE,
    BIND_TIME,
    DECIDED,
    LOCK,
    SERVED_TIME,
    TO_ALLOCATE,
    VGPU_NODE,
    VGPU_TIME,
    dialect,
)
from agent.errors import ClusterUnavailable, CountMismatch, MalformedAnnotation, NoPendingPod
from tests.unit.fakes import GPU_A, GPU_B, NODE, CrashError, Process, vgpu_ids
from tests.unit.scene import Scene

FACTOR = 10
A, B = f"{GPU_A},NVIDIA,300,30:", f"{GPU_B},NVIDIA,500,0:"
IDS, OTHER_IDS, TWO_IDS = vgpu_ids(GPU_A, 0), vgpu_ids(GPU_B, 0), vgpu_ids(GPU_A, 0, 1)
LIMIT = "CUDA_DEVICE_MEMORY_LIMIT_0"
LOCKED_AT = "2025-10-20T03:07:00Z"  # just before the bind


@pytest.fixture
def scene() -> Scene:
    scene = Scene()
    scene.cluster.lock_key = LOCK
    return scene


def start(scene: Scene) -> Process:
    return scene.start(dialect=dialect(lambda: FACTOR), memory_unit_mib=FACTOR)


def container(name: str, vgpus: int = 1, kind: str = "app") -> Container:
    return Container(name=name, vgpus=vgpus, kind=kind, listed=kind == "app" and vgpus > 0)


def bound(
    scene: Scene, name: str, decision: str, *containers: Container, locked: bool = False
) -> Pod:
    if locked:
        scene.cluster.lock(LOCKED_AT)
    return scene.cluster.put(
        Pod(
            namespace="team",
            name=name,
            uid=f"uid-{name}",
            node_name=NODE,
            phase="Pending",
            annotations={
                TO_ALLOCATE: decision,
                DECIDED: decision,
                VGPU_NODE: NODE,
                VGPU_TIME: "1760929622",
                BIND_TIME: "1760929622",
                BIND_PHASE: "allocating",
            },
            containers=containers or (container("main"),),
        )
    )


def ended(scene: Scene, pod: Pod, phase: str = "success") -> bool:
    annotations = scene.now(pod).annotations
    return (annotations[BIND_PHASE], annotations[VGPU_TIME], scene.cluster.lock_value) == (
        phase,
        SERVED_TIME,
        None,
    )


def test_one_container(scene: Scene) -> None:
    mine = bound(scene, "p", A, locked=True)
    agent = start(scene)
    envs = agent.allocate(*IDS)
    assert (envs[LIMIT], envs["CUDA_DEVICE_SM_LIMIT"]) == ("3000m", "30")
    assert envs["NVIDIA_VISIBLE_DEVICES"] == GPU_A
    assert scene.cluster.requests == ["erase", "remove lock"], "the phase goes with the slot"
    assert scene.now(mine).annotations[TO_ALLOCATE] == ""
    assert scene.now(mine).annotations[DECIDED] == A
    assert ended(scene, mine)


def test_two_containers(scene: Scene) -> None:
    log = container("log", 0)
    mine = bound(scene, "p", f"{A};{B}", log, container("a"), log, container("b"), locked=True)
    agent = start(scene)
    assert agent.allocate(*IDS)[LIMIT] == "3000m"
    assert scene.now(mine).annotations[TO_ALLOCATE] == f";{B}"
    assert scene.now(mine).annotations[BIND_PHASE] == "allocating"
    assert scene.cluster.lock_value == LOCKED_AT
    assert agent.allocate(*OTHER_IDS)[LIMIT] == "5000m"
    assert scene.now(mine).annotations[TO_ALLOCATE] == ";"
    assert ended(scene, mine)
    assert scene.caches.directories.keys() == {"uid-p_a", "uid-p_b"}


def test_an_init_container_uses_the_app_containers_share(scene: Scene) -> None:
    mine = bound(scene, "p", A, container("i", kind="init"), container("main"), locked=True)
    agent = start(scene)
    assert agent.allocate(*IDS)[LIMIT] == "3000m"
    assert scene.now(mine).annotations[TO_ALLOCATE] == A
    assert agent.allocate(*IDS)[LIMIT] == "3000m", "kubelet gives it the same ids"
    assert ended(scene, mine)
    assert [record.container for record in scene.grant_log.records()] == ["i", "main"]


def test_a_sidecar_ends_the_bind_with_the_reason(scene: Scene) -> None:
    mine = bound(scene, "p", A, container("s", kind="sidecar"), container("main"), locked=True)
    agent = start(scene)
    with pytest.raises(CountMismatch, match="decides nothing for init containers"):
        agent.allocate(*IDS)
    agent.settle()
    assert ended(scene, mine, "failed")


def test_somebody_elses_gpu_is_waited_for_but_not_for_ever(scene: Scene) -> None:
    """The bind ends when the decision names no GPU any more."""
    mine = bound(scene, "p", f"GPU-x,NVIDIA-Tesla,1,1:{A}", locked=True)
    agent = start(scene)
    assert agent.allocate(*IDS)[LIMIT] == "3000m"
    assert scene.now(mine).annotations[TO_ALLOCATE] == "GPU-x,NVIDIA-Tesla,1,1:"
    assert scene.now(mine).annotations[BIND_PHASE] == "allocating"
    agent.settle()
    assert ended(scene, mine)


def test_when_nobody_waits(scene: Scene) -> None:
    bound(scene, "p", f"{A}{B}", container("main", 2))
    agent = start(scene)
    with pytest.raises(NoPendingPod, match="schedulerName of Volcano's scheduler"):
        agent.allocate(*IDS)


def test_a_lock_is_not_freed_under_another_pod(scene: Scene) -> None:
    """It names nobody: only when no other pod is being bound it can be this one's."""
    bound(scene, "p", A)
    bound(scene, "q", f"{B}{A}", container("main", 2), locked=True)
    agent = start(scene)
    agent.allocate(*IDS)
    agent.allocate(*TWO_IDS)
    agent.settle()
    assert scene.cluster.lock_value is None


EFFECTS = ["create directory", "write limits", "journal", "erase", "remove lock", "mark answered"]


@pytest.mark.parametrize("effect", EFFECTS)
@pytest.mark.parametrize("verdict", ["crash", "crash after"])
def test_the_same_question_after_a_crash(scene: Scene, effect: str, verdict: str) -> None:
    mine = bound(scene, "p", A, locked=True)
    scene.faults.once(effect, verdict)
    with pytest.raises(CrashError):
        start(scene).allocate(*IDS)
    second = start(scene)
    envs = second.allocate(*IDS)
    assert envs[LIMIT] == "3000m"
    assert second.allocate(*IDS) == envs
    second.settle()
    assert ended(scene, mine)


@pytest.mark.parametrize("effect", EFFECTS)
@pytest.mark.parametrize("verdict", ["crash", "crash after"])
def test_a_crash_after_which_nobody_asks_again(scene: Scene, effect: str, verdict: str) -> None:
    mine = bound(scene, "p", A, locked=True)
    scene.faults.once(effect, verdict)
    with pytest.raises(CrashError):
        start(scene).allocate(*IDS)
    scene.cluster.put(replace(scene.now(mine), phase="Failed"))
    start(scene).settle(40)
    assert scene.cluster.lock_value is None
    assert scene.now(mine).annotations[BIND_PHASE] in ("success", "failed")


def test_a_failure_ends_the_bind(scene: Scene) -> None:
    mine = bound(scene, "p", A, locked=True)
    agent = start(scene)
    scene.faults.once("erase", "error")
    with pytest.raises(ClusterUnavailable, match="did not confirm"):
        agent.allocate(*IDS)
    agent.settle()
    assert ended(scene, mine, "failed")
    assert not scene.caches.directories


@pytest.mark.parametrize(
    ("decision", "words"),
    [
        pytest.param(A, "", id="what it asks for"),
        pytest.param(
            f"{GPU_A},NVIDIA,301,30:", "main 3010 MiB, where .* asks for 3000", id="more memory"
        ),
        pytest.param(f"{GPU_A},NVIDIA,300,0:", "all % of the cores", id="all cores"),
    ],
)
def test_a_pod_that_decides_itself_gets_no_more_than_its_limits(
    scene: Scene, decision: str, words: str
) -> None:
    bound(scene, "p", decision, replace(container("main"), asked=Asked(300, 0, 30)))
    agent = start(scene)
    if not words:
        assert agent.allocate(*IDS)[LIMIT] == "3000m"
        return
    with pytest.raises(MalformedAnnotation, match=words):
        agent.allocate(*IDS)


def test_an_init_container_has_what_a_later_one_asks_for(scene: Scene) -> None:
    """Nothing is decided for it: what it says itself is not compared."""
    early = replace(container("warm", kind="init"), asked=Asked(1, 0, 1))
    bound(scene, "p", A, early, replace(container("main"), asked=Asked(300, 0, 30)))
    assert start(scene).allocate(*IDS)[LIMIT] == "3000m"
