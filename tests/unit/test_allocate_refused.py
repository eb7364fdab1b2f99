"""Allocate: every refusal is a sentence, ends the bind, frees the node and leaves nothing behind."""

from dataclasses import replace

import pytest
from sick_gpus import with_health

from agent.domain.claims import TO_ALLOCATE
from agent.domain.gpu import GpuInventory, Sharing
from agent.errors import (
    AgentError,
    BudgetExceeded,
    ClusterConflict,
    ClusterDenied,
    ClusterError,
    ClusterUnavailable,
    CountMismatch,
    MalformedAnnotation,
    NodeNotReady,
    NoPendingPod,
    UnknownDevice,
)
from tests.unit.fakes import GPU_A, GPU_B, Process, lock_of, pod, vgpu_ids
from tests.unit.scene import IDS, PHASE, READS, WRITES, A, B, Scene


@pytest.fixture
def scene() -> Scene:
    return Scene()


def sick(agent: Process) -> None:
    agent.inventory.update(lambda now: with_health(now, GPU_A, "XID 79 (off the bus)"))


def vanished(agent: Process) -> None:
    agent.inventory.update(
        lambda now: GpuInventory.of(gpu for gpu in now.gpus if gpu.uuid != GPU_A)
    )


def unread(agent: Process) -> None:
    agent.inventory.publish(GpuInventory())


def nothing(_agent: Process) -> None:
    return


@pytest.mark.parametrize(
    ("claims", "sabotage", "ids", "error", "words"),
    [
        pytest.param("a,b:;", nothing, IDS, MalformedAnnotation, "3000|'a,b'", id="malformed"),
        pytest.param(f"{A}{A};", nothing, IDS, CountMismatch, "asks for 1 vGPU", id="count"),
        pytest.param(
            "GPU-x,NVIDIA,1,1:;",
            nothing,
            IDS,
            UnknownDevice,
            "has chosen the GPU GPU-x, which node node-1 does not share",
            id="a GPU of another node",
        ),
        pytest.param(
            f"{A};", vanished, vgpu_ids(GPU_B, 0), UnknownDevice, "does not share", id="vanished"
        ),
        pytest.param(f"{A};", vanished, IDS, UnknownDevice, f"vGPU {GPU_A}-0", id="a vanished id"),
        pytest.param(f"{A};", nothing, ["x"], UnknownDevice, "the vGPU x,", id="a foreign id"),
        pytest.param(f"{A};", sick, IDS, NodeNotReady, "XID 79", id="unhealthy"),
        pytest.param(f"{A};", unread, IDS, NodeNotReady, "not read the node's GPUs", id="no NVML"),
        pytest.param(
            f"{GPU_A}[1-0],NVIDIA,1,1:;",
            nothing,
            IDS,
            NodeNotReady,
            "operatingmode to mig",
            id="MIG",
        ),
        pytest.param(
            f"{GPU_A},NVIDIA,-1,1:;", nothing, IDS, MalformedAnnotation, "negative", id="negative"
        ),
    ],
)
def test_a_refusal_ends_the_bind(
    scene: Scene,
    claims: str,
    sabotage: object,
    ids: list[str],
    error: type[AgentError],
    words: str,
) -> None:
    mine = scene.bound(pod("p", claims))
    agent = scene.start()
    sabotage(agent)  # type: ignore[operator]
    with pytest.raises(error, match=words) as refused:
        agent.allocate(*ids)
    assert "delete" in str(refused.value)
    assert scene.now(mine).annotations[PHASE] == "failed"
    assert scene.now(mine).annotations[TO_ALLOCATE] == claims
    assert scene.cluster.lock_value is None
    assert not scene.caches.directories
    assert not scene.grant_log.records()


@pytest.mark.parametrize("text", [None, "", ";", "garbage"])
def test_a_pod_whose_decision_is_gone(scene: Scene, text: str | None) -> None:
    decided = {"hami.io/vgpu-devices-allocated": f"{A};"}
    mine = scene.bound(pod("p", "", annotations=decided).with_annotations({TO_ALLOCATE: text}))
    agent = scene.start()
    with pytest.raises(MalformedAnnotation, match=f"pod team/p asks .*{TO_ALLOCATE}.* delete the"):
        agent.allocate(*IDS)
    assert scene.now(mine).annotations[PHASE] == "failed"
    assert scene.cluster.lock_value is None
    scene.cluster.put(replace(scene.now(mine), phase="Failed"))
    agent.settle()
    assert scene.now(mine).annotations[PHASE] == "failed"


@pytest.mark.parametrize(
    ("sharing", "words"),
    [
        pytest.param(Sharing(mode="mig"), "does not share", id="a GPU without MIG"),
        pytest.param(
            Sharing(excluded_uuids=frozenset({GPU_A})), "does not share", id="an excluded GPU"
        ),
    ],
)
def test_a_gpu_that_is_not_shared_so(scene: Scene, sharing: Sharing, words: str) -> None:
    scene.bound(pod("p", f"{A};"))
    with pytest.raises(AgentError, match=words):
        scene.start(sharing=sharing).allocate(*IDS)
    assert scene.cluster.lock_value is None


def test_nobody_waits(scene: Scene) -> None:
    running = replace(pod("old", ";", phase="success"), phase="Running")
    scene.bound(running)
    agent = scene.start()
    with pytest.raises(NoPendingPod, match=r"no pod on node node-1 is waiting for 1 vGPU\(s\)"):
        agent.allocate(*IDS)
    assert agent.outcomes == ["no_pending_pod"]
    assert scene.cluster.lock_value == lock_of(running)  # left alone
    assert not [verb for verb in scene.cluster.requests if verb in WRITES]


def test_nobody_waits_and_nobody_can_be_asked(scene: Scene) -> None:
    agent = scene.start()
    scene.faults.verdict = lambda effect: "error" if effect in READS else None
    with pytest.raises(ClusterUnavailable, match="as far as is known"):
        agent.allocate(*IDS)
    assert agent.outcomes == ["cluster_unavailable"]


@pytest.mark.parametrize("effect", ["prepare", "create directory", "write limits", "journal"])
def test_the_disk_refuses(scene: Scene, effect: str) -> None:
    mine = scene.bound(pod("p", f"{A};"))
    agent = scene.start()
    scene.faults.once(effect, "error")
    with pytest.raises(NodeNotReady, match=r"the disk is full.*; then delete the pod"):
        agent.allocate(*IDS)
    assert agent.outcomes == ["node_not_ready"]
    assert scene.now(mine).annotations[PHASE] == "failed"
    assert scene.cluster.lock_value is None
    assert not scene.caches.directories
    assert not scene.grant_log.records()


@pytest.mark.parametrize("verdict", ["error", "error after"])
def test_the_erase_fails(scene: Scene, verdict: str) -> None:
    mine = scene.bound(pod("p", f"{A};"))
    agent = scene.start()
    scene.faults.once("erase", verdict)
    with pytest.raises(ClusterUnavailable, match=r"no usable answer came in time.* delete"):
        agent.allocate(*IDS)
    assert scene.now(mine).annotations[PHASE] == "failed"
    assert scene.cluster.lock_value is None
    assert not scene.caches.directories
    assert not scene.grant_log.records()


TRANSPORT = [
    pytest.param(
        ClusterUnavailable("429 to patch x: slow down; it is tried again", code=429),
        "it answered 429",
        id="too many requests",
    ),
    pytest.param(
        ClusterDenied("403 to patch x: no; allow `patch` on `pods`", code=403),
        "it answered 403",
        id="forbidden",
    ),
    pytest.param(
        ClusterError("413 to patch x: large; please report it", code=413),
        "it answered 413",
        id="not expected",
    ),
    pytest.param(
        ClusterUnavailable("the API server answered 200 to patch x: <html>; no JSON"),
        "no usable answer came in time",
        id="an answer that is none",
    ),
    pytest.param(
        ClusterUnavailable("cannot patch x: (ReadTimeoutError: HTTPConnectionPool(host='h'))"),
        "no usable answer came in time",
        id="time-out",
    ),
    pytest.param(
        ClusterDenied("the agent's credentials cannot be read: secret"),
        "does not accept the agent's credentials",
        id="no credentials",
    ),
]


@pytest.mark.parametrize("where", ["erase", "read again", "find"])
@pytest.mark.parametrize(("error", "reason"), TRANSPORT)
def test_what_the_transport_says_is_not_for_the_owner(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, error: ClusterError, reason: str, where: str
) -> None:
    if where != "find":
        scene.bound(pod("p", f"{A};"))
    agent = scene.start()

    def fail(*_: object, **__: object) -> None:
        raise error

    def conflict(*_: object, **__: object) -> None:
        raise ClusterConflict("somebody else changed it")

    monkeypatch.setattr(scene.cluster, "list_pods", fail)
    if where != "find":
        monkeypatch.setattr(scene.cluster, "patch_pod", fail if where == "erase" else conflict)
    with pytest.raises(ClusterError, match=reason) as refused:
        agent.allocate(*IDS)
    said = str(refused.value)
    assert "API server" in said
    assert "delete the pod" in said
    for word in ("tried again", "HTTPConnectionPool", "secret", "report it"):
        assert word not in said
    assert isinstance(refused.value, ClusterDenied) == isinstance(error, ClusterDenied)
    assert scene.cluster.lock_value is None


def test_the_lock_is_freed_even_if_the_phase_cannot_be_written(scene: Scene) -> None:
    mine = scene.bound(pod("p", "a,b:;"))
    agent = scene.start()
    scene.faults.once("patch phase", "error")
    with pytest.raises(MalformedAnnotation):
        agent.allocate(*IDS)
    assert scene.cluster.lock_value is None
    assert scene.now(mine).annotations[PHASE] == "allocating"
    agent.settle()
    assert scene.now(mine).annotations[PHASE] == "failed"


def test_what_the_api_server_does_not_take_is_tried_until_it_does(scene: Scene) -> None:
    mine = scene.bound(pod("p", "a,b:;"))
    agent = scene.start()
    scene.faults.verdict = lambda effect: "error" if effect in WRITES else None
    with pytest.raises(MalformedAnnotation):
        agent.allocate(*IDS)
    agent.settle(120)
    assert scene.cluster.lock_value == lock_of(mine)
    assert agent.finisher.failed() == {mine.uid}
    with pytest.raises(NoPendingPod):  # its bind is over, written or not
        agent.allocate(*IDS)
    scene.faults.verdict = lambda _effect: None
    agent.settle(60)
    assert scene.cluster.lock_value is None
    assert scene.now(mine).annotations[PHASE] == "failed"
    assert len(agent.finisher._open) == 0


def test_a_pod_deleted_in_the_meantime(scene: Scene) -> None:
    mine = scene.bound(pod("p", f"{A};"))
    agent = scene.start()
    scene.cluster.delete(mine.uid)
    with pytest.raises(NoPendingPod, match="pod team/p was deleted"):
        agent.allocate(*IDS)
    assert scene.cluster.lock_value is None
    assert not scene.caches.directories
    assert mine.uid not in agent.pods.now().pods


@pytest.mark.parametrize(
    "names",
    [
        pytest.param(["a"], id="one"),
        pytest.param(["a", "b"], id="two"),
        pytest.param(["c"], id="whose name the next one has"),
    ],
)
def test_a_pod_of_whose_end_the_watch_has_not_told_takes_nobodys_place(
    scene: Scene, names: list[str]
) -> None:
    """A watch that was lost is asked for again within 5 s; meanwhile other pods are bound."""
    gone = [scene.bound(pod(name, f"{A};", uid=f"gone-{name}")) for name in names]
    agent = scene.start()
    for one in gone:
        scene.cluster.delete(one.uid)
    scene.cluster.lock(None)
    after = scene.bound(pod("c", f"{B};"))
    env = agent.allocate(*vgpu_ids(GPU_B, 0))
    assert env["CUDA_DEVICE_MEMORY_LIMIT_0"] == "5000m"
    assert scene.now(after).annotations[PHASE] == "success"
    assert scene.cluster.lock_value is None
    assert [record.pod_uid for record in scene.grant_log.records()] == [after.uid]
    assert len(scene.caches.directories) == 1


def test_a_pod_that_is_being_deleted_gives_its_share_to_nobody(scene: Scene) -> None:
    """Of which the watch has not told yet: another pod may be asking, which would keep that."""
    mine = scene.bound(pod("p", f"{A};"))
    agent = scene.start()
    scene.cluster.put(replace(scene.now(mine), deleting=True))
    other = scene.bound(pod("q", f"{B};"), locked=False)
    with pytest.raises(NoPendingPod, match="pod team/p was deleted"):
        agent.allocate(*vgpu_ids(GPU_B, 0))
    assert scene.cluster.lock_value is None
    assert not scene.caches.directories
    assert not scene.grant_log.records()
    assert scene.now(other).annotations[TO_ALLOCATE] == f"{B};"


def test_time_is_up(scene: Scene) -> None:
    mine = scene.bound(pod("p", f"{A};"))
    agent = scene.start()
    with pytest.raises(BudgetExceeded, match="disk is slow"):
        agent.allocate(*IDS, budget_s=0.05)
    assert agent.outcomes == ["budget_exceeded"]
    assert not [verb for verb in scene.cluster.requests if verb in WRITES]  # left to the loop
    agent.settle()
    assert scene.now(mine).annotations[PHASE] == "failed"
    assert scene.cluster.lock_value is None


def test_another_call_holds_the_turn(scene: Scene) -> None:
    scene.bound(pod("p", f"{A};"))
    agent = scene.start()
    with agent.allocator._one_at_a_time, pytest.raises(BudgetExceeded, match="still being granted"):
        agent.allocate(*IDS, budget_s=0.0)
