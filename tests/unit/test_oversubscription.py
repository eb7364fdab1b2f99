"""No GPU's memory is promised twice, unless the node's memory scaling says that it is wanted."""

from dataclasses import dataclass, field, replace

import pytest

from agent.domain.dialect import DECIDED
from agent.domain.gpu import Gpu, Sharing
from agent.domain.grant_plan import GrantPolicy
from agent.domain.grants import Claim, Grant, GrantRecord
from agent.domain.limits_file import DeviceLimit, LimitsFile
from agent.domain.oversubscription import (
    at_once,
    holds,
    offered_mib,
    promised_mib,
    too_much,
)
from agent.domain.pods import Pod
from agent.errors import NodeNotReady
from agent.services.allocator import EXIT_S, Allocator
from agent.services.grant_writer import GrantWriter
from agent.services.room import Room
from agent.services.supply import Supply
from tests.unit.fakes import GPU_A, GPU_B, Process, container, pod
from tests.unit.scene import Scene

PLAIN = Sharing()
CARD = Gpu(uuid=GPU_A, index=0, name="NVIDIA A40", memory_mib=46068)


@dataclass
class FakeLimits:
    """The part of `ChangedLimits` that is read."""

    files: dict[tuple[str, str], LimitsFile] = field(default_factory=dict)

    def changed(self) -> tuple[tuple[str, str], ...]:
        return tuple(self.files)

    def read(self, pod_uid: str, container: str) -> LimitsFile | None:
        return self.files.get((pod_uid, container))


def started(scene: Scene, sharing: Sharing = PLAIN, limits: FakeLimits | None = None) -> Process:
    """The agent's Allocate side with the check, wired as the daemon wires it."""
    process = scene.start(sharing=sharing)
    room = Room(scene.grant_log, process.view, sharing, limits=limits)  # type: ignore[arg-type]
    process.allocator = Allocator(
        process.view, process.turns, process.finisher,
        GrantWriter(scene.caches, scene.grant_log, GrantPolicy(), room=room, now_s=scene.clock),
        Supply(inventory=process.inventory, sharing=sharing, node_name=process.view.node_name, memory_unit_mib=lambda: 1),
        clock=scene.clock,
    )  # fmt: skip
    return process


INIT_AND_APP = {"containers": (container("first", kind="init"), container("main"))}


def claim(memory_mib: int, uuid: str = GPU_A) -> str:
    return f"{uuid},NVIDIA,{memory_mib},10:"


@pytest.fixture
def scene() -> Scene:
    return Scene()


@pytest.mark.parametrize(
    ("first", "second", "sharing"),
    [
        pytest.param(claim(26068), claim(20000), Sharing(), id="just all of it"),
        pytest.param(claim(46068), claim(46068, GPU_B), Sharing(), id="another GPU"),
        pytest.param(claim(40000), claim(40000), Sharing(memory_scaling=2), id="scaled"),
    ],
)
def test_what_fits_is_granted(scene: Scene, first: str, second: str, sharing: Sharing) -> None:
    scene.bound(pod("one", f"{first};"))
    process = started(scene, sharing)
    process.allocate(f"{GPU_A}-0")
    scene.bound(pod("two", f"{second};"))
    process.deliver()
    assert process.allocate(f"{GPU_A}-1")["CUDA_DEVICE_MEMORY_LIMIT_0"]


@pytest.mark.parametrize(
    ("first", "second", "sharing"),
    [
        pytest.param(claim(26068), claim(20001), Sharing(), id="1 MiB too much"),
        pytest.param(claim(100), claim(0), Sharing(), id="one without a limit"),
        pytest.param(claim(0), claim(100), Sharing(), id="beside one without a limit"),
        pytest.param(claim(1000), claim(24000) + claim(24000), Sharing(), id="two of one GPU"),
        pytest.param(claim(60000), claim(60000), Sharing(memory_scaling=2), id="beyond scaling"),
    ],
)
def test_more_than_there_is_is_refused(
    scene: Scene, first: str, second: str, sharing: Sharing
) -> None:
    scene.bound(pod("one", f"{first};"))
    process = started(scene, sharing)
    process.allocate(f"{GPU_A}-0")
    count = second.count(":")
    scene.bound(pod("two", f"{second};", container("main", count)))
    process.deliver()
    with pytest.raises(NodeNotReady, match="--device-memory-scaling") as refused:
        process.allocate(*[f"{GPU_A}-{slot + 1}" for slot in range(count)])
    assert "delete the pod" in str(refused.value)
    assert scene.cluster.lock_value is None  # the bind has ended
    assert list(scene.caches.directories) == ["uid-one_main"]


@pytest.mark.parametrize(
    ("limit_mib", "second_mib", "fits"),
    [
        pytest.param(30000, 16068, True, id="raised, and there is room"),
        pytest.param(30000, 16069, False, id="raised, and 1 MiB too much"),
        pytest.param(0, 100, False, id="its limit was taken away"),
        pytest.param(1000, 26068, True, id="lowered: just what is left of the grant"),
        pytest.param(1000, 26069, False, id="lowered: it gets its grant back when it likes"),
    ],
)
def test_a_limit_that_was_changed_counts_as_it_is(
    scene: Scene, limit_mib: int, second_mib: int, fits: bool
) -> None:
    scene.bound(pod("one", f"{claim(20000)};"))
    limits = FakeLimits()
    process = started(scene, limits=limits)
    process.allocate(f"{GPU_A}-0")
    line = DeviceLimit(uuid=GPU_A, memory_limit_bytes=limit_mib << 20)
    limits.files["uid-one", "main"] = LimitsFile(devices=(line,))
    scene.bound(pod("two", f"{claim(second_mib)};"))
    process.deliver()
    if fits:
        assert process.allocate(f"{GPU_A}-1")
    else:
        with pytest.raises(NodeNotReady, match="--device-memory-scaling"):
            process.allocate(f"{GPU_A}-1")


@pytest.mark.parametrize(
    ("decided", "left", "changes", "fits"),
    [
        pytest.param(f"{claim(40000)};", ";", {}, False, id="it runs"),
        pytest.param(f"{claim(0)};", ";", {}, False, id="without a limit"),
        pytest.param(f"{GPU_A},NVIDIA,40000,0:;", ";", {}, False, id="without a core limit"),
        pytest.param(f"{claim(40000)};", f"{claim(40000)};", {}, True, id="not served yet"),
        pytest.param(
            f"{claim(20000)};{claim(20000)};", f";{claim(20000)};", {}, True, id="half of it"
        ),
        pytest.param(f"{claim(40000)};", ";", {"phase": "Failed"}, True, id="it has ended"),
        pytest.param(f"{claim(40000, GPU_B)};", ";", {}, True, id="another GPU"),
        pytest.param("x,y:;", ";", {}, True, id="unreadable"),
        pytest.param("", ";", {}, True, id="nothing decided"),
        pytest.param(
            f"{claim(40000)};",
            ";",
            {"containers": (container("main", 0),)},
            True,
            id="it asks for no vGPU",
        ),
        pytest.param(f"{claim(10000)}{claim(30000)};", ";", {}, True, id="more than it asks for"),
        pytest.param(
            f"{claim(40000)};", ";", {"phase": "Pending"}, True, id="not let in by kubelet"
        ),
        pytest.param(
            f"{claim(40000)};",
            ";",
            {"phase": "Pending", "acknowledged": True},
            False,
            id="let in, and not started yet",
        ),
        pytest.param(
            f"{claim(40000)};",
            ";",
            {"annotations": {DECIDED: f"{claim(40000)};"}},
            True,
            id="decided for no node",
        ),
        pytest.param(f"{claim(-40000)};", ";", {}, True, id="a negative amount"),
        pytest.param(f"{claim(2**31 - 1)};", ";", {}, False, id="a huge amount is all of it"),
        pytest.param(
            f"{claim(26068)};{claim(26068)};", ";;", INIT_AND_APP, True, id="init, then app"
        ),
        pytest.param(
            f"{claim(26069)};{claim(100)};", ";;", INIT_AND_APP, False, id="the init has more"
        ),
        pytest.param(
            f"{claim(26069)};{claim(100)};",
            ";;",
            {**INIT_AND_APP, "ended": frozenset({"first"})},
            True,
            id="the init had more",
        ),
        pytest.param(
            f"{claim(20000)};{claim(20000)};",
            ";;",
            {"containers": (container("first", kind="sidecar"), container("main"))},
            False,
            id="a sidecar and an app",
        ),
        pytest.param(
            f"{claim(20000)};{claim(20000)};",
            f";{claim(20000)};",
            INIT_AND_APP,
            True,
            id="init, and the app is not served yet",
        ),
        pytest.param(
            f"{claim(20000)}{claim(20000)};{claim(100)};",
            ";;",
            {"containers": (container("first", kind="init"), container("main", 2))},
            False,
            id="not told which is the init's",
        ),
    ],
)
def test_what_another_plugin_has_granted_counts(
    scene: Scene, decided: str, left: str, changes: dict[str, object], fits: bool
) -> None:
    """HAMi's own, before this agent came: the scheduler's annotation tells."""
    before = pod("before", left, annotations={DECIDED: decided})
    scene.cluster.put(replace(before, **{"phase": "Running", **changes}))  # type: ignore[arg-type]
    scene.bound(pod("two", f"{claim(20000)};"))
    process = started(scene)
    if fits:
        assert process.allocate(f"{GPU_A}-1")
    else:
        with pytest.raises(NodeNotReady, match="--device-memory-scaling"):
            process.allocate(f"{GPU_A}-1")


@pytest.mark.parametrize(
    ("decided", "left"),
    [
        pytest.param(f"{claim(-46068)};", ";", id="a negative amount"),
        pytest.param(f"{GPU_A},NVIDIA,100,-100:;", ";", id="a negative share"),
        pytest.param(f"{claim(100)};", f"{claim(46068)};", id="more waits than was decided"),
    ],
)
@pytest.mark.parametrize("vgpus", [0, 1])
def test_no_annotation_makes_room(scene: Scene, decided: str, left: str, vgpus: int) -> None:
    """The card is full, and stays so."""
    scene.bound(pod("one", f"{claim(46068)};"))
    process = started(scene)
    process.allocate(f"{GPU_A}-0")
    liar = pod("liar", left, container("main", vgpus), annotations={DECIDED: decided})
    scene.cluster.put(replace(liar, phase="Running"))
    scene.bound(pod("two", f"{claim(1)};"))
    process.deliver()
    with pytest.raises(NodeNotReady, match="--device-memory-scaling"):
        process.allocate(f"{GPU_A}-1")


def test_who_has_a_grant_of_ours_has_no_more_than_that(scene: Scene) -> None:
    """Neither by its own name nor by that of a slice: what its annotation says is not asked."""
    forged = {DECIDED: f"{claim(46068)};"}
    scene.cluster.put(replace(pod("p", ";", annotations=forged), phase="Running"))
    process = started(scene)
    wanted = [Claim(GPU_A, "NVIDIA", 20000, 10)]
    room = Room(scene.grant_log, process.view, PLAIN)
    with pytest.raises(NodeNotReady):
        room.check(("uid-two", "main"), wanted, [CARD], deadline_s=scene.clock() + 2)
    record = GrantRecord(
        pod_uid="slices-0123456789abcdef", namespace="team", pod_name="p", container="main",
        device_ids=(f"{GPU_A}-0",), claims=(Claim(GPU_A, "NVIDIA", 4606, 10),), grant=Grant(),
        granted_at_s=0.0, owner_uid="uid-p",
    )  # fmt: skip
    scene.grant_log.record(record)
    room.check(("uid-two", "main"), wanted, [CARD], deadline_s=scene.clock() + 2)


def test_amounts_in_units_of_others_do_not_count(scene: Scene) -> None:
    """Mode volcano: how large a unit was when another plugin granted is not known."""
    decided = pod("before", ";", annotations={DECIDED: f"{claim(40000)};"})
    scene.cluster.put(replace(decided, phase="Running"))
    process = started(scene)
    room = Room(scene.grant_log, process.view, PLAIN, dialect=None)
    wanted = [Claim(GPU_A, "NVIDIA", 20000, 10)]
    room.check(("uid-two", "main"), wanted, [CARD], deadline_s=scene.clock() + 2)
    with pytest.raises(NodeNotReady):
        Room(scene.grant_log, process.view, PLAIN).check(
            ("uid-two", "main"), wanted, [CARD], deadline_s=scene.clock() + 2
        )


def test_who_cannot_ask_refuses(scene: Scene) -> None:
    """The watch may be old; but nobody is promised what others have for that."""
    scene.bound(pod("one", f"{claim(46068)};"))
    process = started(scene)
    process.allocate(f"{GPU_A}-0")
    scene.bound(pod("two", f"{claim(1)};"))
    process.deliver()
    scene.faults.verdict = lambda effect: "error" if effect == "list pods" else None
    with pytest.raises(NodeNotReady, match="API server does not answer"):
        process.allocate(f"{GPU_A}-1")


def test_it_is_asked_no_longer_than_kubelet_waits(scene: Scene) -> None:
    """An API server that hangs holds up every other Allocate of the node meanwhile."""
    scene.bound(pod("one", f"{claim(46068)};"))
    process = started(scene)
    process.allocate(f"{GPU_A}-0")
    scene.bound(pod("two", f"{claim(1)};"))
    process.deliver()
    scene.cluster.requests.clear()
    scene.cluster.deadlines_s.clear()
    scene.faults.verdict = lambda effect: "error" if effect == "list pods" else None
    with pytest.raises(NodeNotReady, match="API server does not answer"):
        process.allocate(f"{GPU_A}-1", budget_s=1.6)
    asked = dict(zip(scene.cluster.requests, scene.cluster.deadlines_s, strict=True))
    assert asked["list pods"] == pytest.approx(scene.clock() + 1.6 - EXIT_S)
    assert all(deadline_s is not None for deadline_s in asked.values())


def test_a_pod_that_is_gone_does_not_count_though_the_watch_has_not_told(scene: Scene) -> None:
    scene.bound(pod("one", f"{claim(46068)};"))
    process = started(scene)
    process.allocate(f"{GPU_A}-0")
    process.deliver()
    scene.cluster.delete("uid-one")
    two = scene.bound(pod("two", f"{claim(46068)};"))
    process.view.saw_pod(two)
    assert process.allocate(f"{GPU_A}-1")["CUDA_DEVICE_MEMORY_LIMIT_0"] == "46068m"


def test_a_container_does_not_count_against_itself(scene: Scene) -> None:
    scene.bound(pod("one", f"{claim(46068)};"))
    process = started(scene)
    first = process.allocate(f"{GPU_A}-0")
    assert process.allocate(f"{GPU_A}-0") == first
    assert started(scene).allocate(f"{GPU_A}-0") == first


@pytest.mark.parametrize(
    ("containers", "mib"),
    [
        pytest.param([], 0, id="none"),
        pytest.param([("app", 3), ("app", 4)], 7, id="apps run beside each other"),
        pytest.param([("init", 3), ("init", 5), ("app", 4)], 5, id="inits run one by one"),
        pytest.param([("init", 3), ("app", 4)], 4, id="the app has more"),
        pytest.param([("sidecar", 1), ("init", 5), ("app", 4)], 6, id="beside the sidecar before"),
        pytest.param([("init", 5), ("sidecar", 1), ("app", 3)], 5, id="before the sidecar"),
        pytest.param([("sidecar", 1), ("init", 1), ("app", 4)], 5, id="a sidecar and an app"),
    ],
)
def test_what_a_pod_has_at_one_time(containers: list[tuple[str, int]], mib: int) -> None:
    assert at_once(containers) == mib


@pytest.mark.parametrize(
    ("second_mib", "ended", "fits"),
    [
        pytest.param(16068, frozenset(), True, id="just what is left"),
        pytest.param(16069, frozenset(), False, id="1 MiB too much"),
        pytest.param(36068, frozenset({"load"}), True, id="the init has ended"),
        pytest.param(36069, frozenset({"load"}), False, id="and 1 MiB too much"),
    ],
)
def test_an_init_container_and_its_app_do_not_count_both(
    scene: Scene, second_mib: int, ended: frozenset[str], fits: bool
) -> None:
    containers = (container("load", kind="init"), container("main"))
    made = pod("one", f"{claim(30000)};{claim(10000)};", *containers)
    scene.bound(made)
    process = started(scene)
    process.allocate(f"{GPU_A}-0")
    process.allocate(f"{GPU_A}-0")
    scene.cluster.put(replace(scene.now(made), ended=ended))
    scene.bound(pod("two", f"{claim(second_mib)};"))
    process.deliver()
    if fits:
        assert process.allocate(f"{GPU_A}-1")
    else:
        with pytest.raises(NodeNotReady, match="--device-memory-scaling"):
            process.allocate(f"{GPU_A}-1")


@pytest.mark.parametrize(
    ("kind", "asking", "changes", "counts"),
    [
        pytest.param("app", ("uid-q", "main"), {}, True, id="another pod's"),
        pytest.param("app", ("uid-p", "other"), {}, True, id="another container's"),
        pytest.param("app", ("uid-p", "main"), {}, False, id="its own"),
        pytest.param("app", ("uid-q", "main"), {"phase": "Failed"}, False, id="of a failed pod"),
        pytest.param("init", ("uid-p", "other"), {}, False, id="its pod's init container's"),
        pytest.param("init", ("uid-q", "main"), {}, True, id="a running init container's"),
        pytest.param(
            "init", ("uid-q", "main"), {"ended": frozenset({"main"})}, False, id="of one that ended"
        ),
        pytest.param("sidecar", ("uid-p", "other"), {}, True, id="a sidecar's"),
    ],
)
def test_whose_grants_count(
    kind: str, asking: tuple[str, str], changes: dict[str, object], counts: bool
) -> None:
    record = GrantRecord(
        pod_uid="uid-p", namespace="team", pod_name="p", container="main", device_ids=(),
        claims=(), grant=Grant(), granted_at_s=0.0,
    )  # fmt: skip
    made: Pod = replace(pod("p", "", container("main", kind=kind)), **changes)  # type: ignore[arg-type]
    assert holds(record, made, asking) is counts


@pytest.mark.parametrize(
    ("gpu", "sharing", "mib"),
    [
        pytest.param(CARD, Sharing(), 46068, id="as it is"),
        pytest.param(CARD, Sharing(memory_scaling=1.5), 69102, id="scaled up"),
        pytest.param(CARD, Sharing(memory_scaling=0.5), 46068, id="scaled down: still its own"),
        pytest.param(
            replace(CARD, memory_mib=49140), Sharing(memory_scaling=1.15), 56511, id="to the MiB"
        ),
        pytest.param(
            replace(CARD, memory_mib=None), Sharing(preconfigured_memory_mib=9), 9, id="configured"
        ),
        pytest.param(replace(CARD, memory_mib=None), Sharing(), 0, id="not known"),
    ],
)
def test_what_may_be_promised(gpu: Gpu, sharing: Sharing, mib: int) -> None:
    assert offered_mib(gpu, sharing) == mib


def test_of_a_gpu_of_unknown_memory_nothing_is_refused() -> None:
    unknown = replace(CARD, memory_mib=None)
    assert promised_mib([Claim(GPU_A, "NVIDIA", 7, 1)], GPU_A, 0) == 7
    assert too_much(unknown, 10**6, 10**6, Sharing()) == ""
