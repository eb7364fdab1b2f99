"""Whose a GPU and what lies on it is: what others hold is never taken, whatever annotations say."""

from dataclasses import replace

import pytest

from agent.domain.claims import TO_ALLOCATE
from agent.domain.dialect import DECIDED
from agent.domain.gpu import MigDevice
from agent.domain.mig_allocations import (
    MIG_ALLOCATIONS,
    MigIdentity,
    encode_allocations,
)
from agent.domain.mig_books import Book
from agent.domain.ownership import HeldDevice
from agent.domain.pods import Pod
from agent.errors import AgentError
from tests.unit.fakes import GPU_A, CrashError, container, pod
from tests.unit.mig_world import A100, LARGE, SMALL, World, allocation, mig_pod
from tests.unit.test_mig_keeper import put, stranger

IDS = [f"{GPU_A}-0"]
DEVICE = MigDevice(
    uuid="MIG-7", profile="1g.5gb", memory_mib=4864, gpu_instance=7, compute_instance=0,
    slice_count=1, compute_slice_count=1, multiprocessors=14,
)  # fmt: skip


@pytest.fixture
def world() -> World:
    return World()


def served(name: str, decided: str, *, left: str = ";", **changes: object) -> Pod:
    """A pod that somebody has served: its decision is consumed."""
    made = pod(name, left, annotations={DECIDED: decided}, phase="success")
    return replace(made, **{"phase": "Running", **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("there", "enabled"),
    [
        pytest.param(served("p", f"{GPU_A},NVIDIA,4000,10:;"), False, id="shared by the library"),
        pytest.param(
            served("p", f"{GPU_A},NVIDIA,4000,10:;", phase="Succeeded"), True, id="it has ended"
        ),
        pytest.param(served("p", "GPU-else,NVIDIA,4000,10:;"), True, id="of another GPU"),
        pytest.param(served("p", "nonsense,:;;"), True, id="unreadable"),
        pytest.param(
            replace(mig_pod("p", replace(allocation(6), identity=MigIdentity("MIG-13", 13, 0))),
                    phase="Running"), True, id="a MIG device of before the node's restart",
        ),
    ],
)  # fmt: skip
def test_a_gpu_of_a_pod_that_idles_is_not_divided(world: World, there: Pod, enabled: bool) -> None:
    world.maker.enabled = False
    world.cluster.put(there)
    _, keeper = world.life()
    keeper.step_once()
    assert world.maker.enabled is enabled


def test_what_an_older_plugin_made_for_a_pod_that_idles_stays(world: World) -> None:
    """HAMi 2.9 wrote no annotation of instances: which is whose, nobody can tell."""
    put(world, stranger(0))
    world.cluster.put(served("old", f"{GPU_A}[1-2],NVIDIA,4864,14:;"))
    process, keeper = world.life()
    keeper.step_once()
    assert world.places() == {0: 1}
    world.cluster.delete("uid-old")
    process.deliver()
    keeper.step_once()
    assert world.places() == {}


def test_what_we_made_for_one_pod_does_not_tell_what_another_has(world: World) -> None:
    """On one GPU: one that is in our book, and an older plugin's, whose annotation does not say."""
    world.bound(mig_pod("p", allocation(6)))
    process, keeper = world.life()
    process.allocate(*IDS)
    put(world, stranger(0))
    world.cluster.put(served("old", f"{GPU_A}[1-2],NVIDIA,4864,14:;"))
    process.deliver()
    keeper.step_once()
    assert world.places() == {0: 1, 6: 1}


def test_a_slot_that_waits_to_be_served_keeps_nothing(world: World) -> None:
    claim = f"{GPU_A}[1-3],NVIDIA,4864,14:;"
    world.bound(pod("new", claim, annotations={DECIDED: claim}))
    put(world, stranger(2))
    process, keeper = world.life()
    keeper.step_once()
    put(world, stranger(6))
    assert process.allocate(*IDS) == {"NVIDIA_VISIBLE_DEVICES": "MIG-13"}


@pytest.mark.parametrize("enabled", [True, False], ids=["divided", "whole"])
def test_what_others_containers_have_is_not_touched(world: World, enabled: bool) -> None:
    """By kubelet's books: NVIDIA's plugin, or a DRA driver, gave it away."""
    world.maker.enabled = enabled
    put(world, *([stranger(0)] if enabled else []))
    device = "MIG-7" if enabled else f"{GPU_A}::3"
    world.books.holds = (HeldDevice("team/theirs/main", "nvidia.com/shared", device),)
    _, keeper = world.life(replace(A100, mig_devices=(DEVICE,) if enabled else ()))
    keeper.step_once()
    assert (world.maker.enabled, world.places()) == (enabled, {0: 1} if enabled else {})
    world.books.holds = ()
    keeper.step_once()
    assert (world.maker.enabled, world.places()) == (True, {})


def test_what_is_ours_goes_though_kubelet_does_not_answer(world: World) -> None:
    world.bound(mig_pod("p", allocation(6)))
    process, keeper = world.life()
    process.allocate(*IDS)
    world.cluster.delete("uid-p")
    process.deliver()
    world.faults.verdict = lambda effect: "error" if effect == "kubelet" else None
    keeper.step_once()
    assert world.places() == {}


def test_kubelets_that_must_not_be_asked_are_not(world: World) -> None:
    put(world, stranger(0))
    world.books.old = True
    _, keeper = world.life()
    keeper.step_once()
    assert world.places() == {}


def test_nothing_is_cleared_away_before_the_pods_are_known(world: World) -> None:
    """An agent that has just started knows of its book, and of the pod that it is asked about."""
    world.bound(mig_pod("owner", allocation(6)))
    process, _ = world.life()
    process.allocate(*IDS)
    thief = mig_pod("thief", allocation(6))
    world.bound(thief)
    later, _ = world.life()
    later.pods.update(lambda table: type(table)({"uid-thief": table.pods["uid-thief"]}))
    with pytest.raises(AgentError):
        later.allocate(f"{GPU_A}-1")
    assert world.places() == {6: 1}
    assert [one.pod_uid for one in world.book.book] == ["uid-owner"]


def test_an_answer_is_not_given_again_for_another_device(world: World) -> None:
    """Somebody has divided the GPU anew: the old answer names a device that is not there."""
    world.bound(mig_pod("p", allocation(6)))
    process, _ = world.life()
    process.allocate(*IDS)
    world.maker.instances.clear()
    world.maker.generation = "-again"
    for _ in range(2):
        with pytest.raises(AgentError, match="are gone"):
            process.allocate(*IDS)


def test_what_was_made_anew_after_a_crash_is_not_what_the_container_was_given(world: World) -> None:
    """It has the place and the number that the book says, but another name, and somebody uses it."""
    world.bound(mig_pod("p", allocation(6)))
    process, _ = world.life()
    world.faults.once("journal", "crash")
    with pytest.raises(CrashError):
        process.allocate(*IDS)
    world.faults.verdict = lambda _effect: None
    world.maker.instances[13] = replace(world.maker.instances[13], devices=((0, "MIG-else"),))
    world.maker.busy = {13}
    later, _ = world.life()
    with pytest.raises(AgentError, match="still uses what was there before"):
        later.allocate(*IDS)
    assert world.places() == {6: 1}


@pytest.mark.parametrize("budget_s", [0.5, 2.0])
def test_an_answer_given_again_waits_as_long_as_kubelet_does(
    world: World, monkeypatch: pytest.MonkeyPatch, budget_s: float
) -> None:
    """The GPUs may be being divided for somebody else."""
    world.bound(mig_pod("p", allocation(6)))
    process, keeper = world.life()
    first, until_s, exist = process.allocate(*IDS), [], keeper.exist

    def asked(holdings: Book, *, deadline_s: float) -> bool:
        until_s.append(deadline_s)
        return exist(holdings, deadline_s=deadline_s)

    monkeypatch.setattr(keeper, "exist", asked)
    assert process.allocate(*IDS, budget_s=budget_s) == first
    assert until_s == [world.clock() + budget_s]


def test_what_cannot_be_taken_back_is_not_forgotten(world: World) -> None:
    """On a GPU on which others have something, only what the book says is ours is destroyed."""
    put(world, stranger(4, 4))
    world.maker.busy = {1}
    world.bound(mig_pod("p", allocation(0), allocation(1, device=1)))
    process, keeper = world.life()
    keeper.step_once()
    creations: list[str] = []

    def judge(effect: str) -> str | None:
        creations.append(effect)
        refused = effect == "destroy" or (effect == "create" and creations.count("create") == 2)
        return "error" if refused else None

    world.faults.verdict = judge
    with pytest.raises(AgentError):
        process.allocate(f"{GPU_A}-0", f"{GPU_A}-1")
    world.faults.verdict = lambda _effect: None
    world.cluster.delete("uid-p")
    process.deliver()
    keeper.step_once()
    assert world.places() == {4: 4}
    assert world.book.book == ()


def test_an_instance_without_its_second_half_is_not_forgotten(world: World) -> None:
    """The driver makes the GPU instance, no compute instance, and does not take it back either."""
    put(world, stranger(4, 4))
    world.maker.busy = {1}
    world.bound(mig_pod("p", allocation(0)))
    process, keeper = world.life()
    keeper.step_once()
    world.maker.leaves_halves = True
    world.faults.verdict = lambda effect: "error" if effect in ("complete", "destroy") else None
    with pytest.raises(AgentError):
        process.allocate(*IDS)
    world.faults.verdict = lambda _effect: None
    assert world.places() == {0: 1, 4: 4}
    world.cluster.delete("uid-p")
    process.deliver()
    keeper.step_once()
    assert world.places() == {4: 4}


def test_each_container_gets_its_own_though_places_leave_out_others(world: World) -> None:
    """HAMi 2.10.0 may count containers with GPUs alone; both are on the same GPU."""
    made = (container("log", 0), container("small", 1), container("large", 1))
    world.bound(mig_pod("p", allocation(0), allocation(4, LARGE, container=1), containers=made))
    process, _ = world.life()
    assert process.allocate(f"{GPU_A}-0")["NVIDIA_VISIBLE_DEVICES"] == "MIG-7"
    process.deliver()
    assert process.allocate(f"{GPU_A}-1")["NVIDIA_VISIBLE_DEVICES"] == "MIG-2"


@pytest.mark.parametrize(
    "second",
    [
        pytest.param(allocation(6, device=1), id="the same place twice"),
        pytest.param(allocation(4, LARGE, device=1), id="over it"),
    ],
)
def test_a_pod_that_is_promised_a_place_twice_gets_nothing(world: World, second: object) -> None:
    world.bound(mig_pod("p", allocation(6), second))  # type: ignore[arg-type]
    process, _ = world.life()
    with pytest.raises(AgentError, match="lie over each other"):
        process.allocate(f"{GPU_A}-0", f"{GPU_A}-1")
    assert world.places() == {}
    assert world.book.book == ()


def test_a_pod_cannot_hold_more_places_than_it_has_devices(world: World) -> None:
    """Its author writes every place of the GPU into its annotation."""
    liar = mig_pod("liar", allocation(0))
    all_places = [
        replace(allocation(start, device=start), identity=MigIdentity(f"MIG-{7 + start}", 7 + start, 0))
        for start in range(7)
    ]  # fmt: skip
    world.cluster.put(
        replace(liar, phase="Running", annotations={
            **liar.annotations, TO_ALLOCATE: ";", MIG_ALLOCATIONS: encode_allocations(all_places)})
    )  # fmt: skip
    world.bound(mig_pod("p", allocation(6)))
    process, _ = world.life()
    assert process.allocate(*IDS) == {"NVIDIA_VISIBLE_DEVICES": "MIG-13"}


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("x" * 200_000, id="long"),
        pytest.param("\ud800", id="half a character"),
        pytest.param("a\x1b[31m\n\x00b", id="control characters"),
    ],
)
@pytest.mark.parametrize("field", ["profile", "gpu_uuid"])
def test_hostile_text_does_not_get_into_messages(world: World, field: str, text: str) -> None:
    made = mig_pod("p", allocation(6))
    hostile = replace(allocation(6), **{field: text})  # type: ignore[arg-type]
    annotations = {**made.annotations, MIG_ALLOCATIONS: encode_allocations([hostile])}
    if field == "gpu_uuid":
        annotations[TO_ALLOCATE] = f"{GPU_A},NVIDIA,4864,14:;"
    world.bound(replace(made, annotations=annotations))
    process, _ = world.life()
    with pytest.raises(AgentError) as refused:
        process.allocate(*IDS)
    message = str(refused.value)
    assert len(message) < 1000
    assert message.isprintable()
    message.encode()


def test_instances_of_pods_that_live_are_missed_aloud(world: World) -> None:
    """After a restart of the node: its pods are there, what was made for them is not."""
    world.bound(mig_pod("p", allocation(6)))
    process, keeper = world.life()
    process.allocate(*IDS)
    process.deliver()
    world.maker.instances.clear()
    keeper.step_once()
    keeper.step_once()
    (event,) = world.posted
    assert (event.reason, event.pod and event.pod.name) == ("MigDeviceGone", "p")
    assert SMALL.name in event.message


@pytest.mark.parametrize("verdict", ["error", "crash after"])
def test_what_was_refused_is_nobodys_afterwards(world: World, verdict: str) -> None:
    """What lies where a pod wanted its instance is not taken for that pod's later on."""
    put(world, stranger(6))
    world.cluster.put(served("old", f"{GPU_A}[1-2],NVIDIA,4864,14:;"))
    world.bound(mig_pod("p", allocation(6)))
    process, _ = world.life()
    if verdict != "error":
        world.faults.once("book", verdict)
    with pytest.raises((AgentError, CrashError)):
        process.allocate(*IDS)
    world.faults.verdict = lambda _effect: None
    later, keeper = world.life()
    with pytest.raises(AgentError):
        later.allocate(*IDS)
    world.cluster.delete("uid-p")
    later.deliver()
    keeper.step_once()
    assert world.places() == {6: 1}
