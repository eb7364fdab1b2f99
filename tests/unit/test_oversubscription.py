"""No GPU's memory is promised twice, unless the node's memory scaling says that it is wanted."""

from dataclasses import replace

import pytest

from agent.domain.gpu import Gpu, Sharing
from agent.domain.grant_plan import GrantPolicy
from agent.domain.grants import Claim, Grant, GrantRecord
from agent.domain.oversubscription import holds, offered_mib, promised_mib, too_much
from agent.domain.pods import Pod
from agent.errors import NodeNotReady
from agent.services.allocator import Allocator, Supply
from agent.services.grant_writer import GrantWriter
from agent.services.room import Room
from tests.unit.fakes import GPU_A, GPU_B, Process, container, pod
from tests.unit.scene import Scene

PLAIN = Sharing()
CARD = Gpu(uuid=GPU_A, index=0, name="NVIDIA A40", memory_mib=46068)


def started(scene: Scene, sharing: Sharing = PLAIN) -> Process:
    """The agent's Allocate side with the check, wired as the daemon wires it."""
    process = scene.start(sharing=sharing)
    room = Room(scene.grant_log, process.view, sharing)
    process.allocator = Allocator(
        process.view, process.turns, process.finisher,
        GrantWriter(scene.caches, scene.grant_log, GrantPolicy(), room=room, now_s=scene.clock),
        Supply(inventory=process.inventory, sharing=sharing), clock=scene.clock,
    )  # fmt: skip
    return process


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
