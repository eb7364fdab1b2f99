"""Instances are made once, at the very place, and go when they are nobody's; in doubt they stay."""

from dataclasses import replace

import pytest

from agent.domain.gpu import MigPlacement
from agent.domain.mig import MigInstance
from agent.domain.mig_allocations import (
    MIG_ALLOCATIONS,
    MigIdentity,
    decode_allocations,
    encode_allocations,
)
from agent.errors import AgentError
from tests.unit.fakes import GPU_A, CrashError, container, pod
from tests.unit.mig_world import LARGE, MEDIUM, SHARING, SMALL, World, allocation, mig_pod

IDS = [f"{GPU_A}-0"]
HAMI = "/tmp/hami/lock says that GPUs are being divided"


@pytest.fixture
def world() -> World:
    return World()


def identities(world: World, name: str) -> list[MigIdentity | None]:
    text = world.cluster.pods[f"uid-{name}"].annotations[MIG_ALLOCATIONS]
    return [one.identity for one in decode_allocations(text)]


def stranger(start: int, size: int = 1) -> MigInstance:
    number = 8 // size - 1 + start // size
    return MigInstance(
        gpu_uuid=GPU_A, gpu_instance=number, profile_id=19, placement=MigPlacement(start, size),
        devices=((0, f"MIG-{number}"),),
    )  # fmt: skip


def put(world: World, *instances: MigInstance) -> None:
    for one in instances:
        world.maker.instances[one.gpu_instance] = one


def test_a_container_gets_what_was_decided_and_the_pod_is_told(world: World) -> None:
    world.bound(mig_pod("p", allocation(6)))
    process, _ = world.life()
    assert process.allocate(*IDS) == {"NVIDIA_VISIBLE_DEVICES": "MIG-13"}
    assert identities(world, "p") == [MigIdentity("MIG-13", 13, 0)]
    assert world.places() == {6: 1}
    assert world.cluster.pods["uid-p"].annotations["hami.io/bind-phase"] == "success"
    assert world.cluster.lock_value is None
    assert world.apply_lock.times


def test_a_container_of_two_devices_and_one_after_it(world: World) -> None:
    world.bound(
        mig_pod("p", allocation(0, MEDIUM), allocation(4, LARGE, device=1), allocation(2, container=1))
    )  # fmt: skip
    process, _ = world.life()
    first = process.allocate(f"{GPU_A}-0", f"{GPU_A}-1")
    assert first["NVIDIA_VISIBLE_DEVICES"] == "MIG-3,MIG-2"
    process.deliver()
    assert process.allocate(f"{GPU_A}-2")["NVIDIA_VISIBLE_DEVICES"] == "MIG-9"
    assert None not in identities(world, "p")


def test_places_that_leave_out_containers_without_gpus_are_understood(world: World) -> None:
    """HAMi 2.10.0 may count places among containers with GPUs alone."""
    made = (container("log", 0), container("main", 1))
    world.bound(mig_pod("p", allocation(3), containers=made))
    process, _ = world.life()
    assert process.allocate(*IDS)["NVIDIA_VISIBLE_DEVICES"] == "MIG-10"


def test_the_same_question_has_the_same_answer(world: World) -> None:
    world.bound(mig_pod("p", allocation(6)))
    process, _ = world.life()
    assert process.allocate(*IDS) == process.allocate(*IDS)
    later, _ = world.life()
    assert later.allocate(*IDS) == {"NVIDIA_VISIBLE_DEVICES": "MIG-13"}
    assert world.places() == {6: 1}


def effects_of_an_allocate() -> list[str]:
    world = World()
    world.bound(mig_pod("p", allocation(6), allocation(0, LARGE, device=1)))
    process, _ = world.life()
    process.allocate(f"{GPU_A}-0", f"{GPU_A}-1")
    return world.faults.effects


EFFECTS = effects_of_an_allocate()


@pytest.mark.parametrize("verdict", ["crash", "crash after"])
@pytest.mark.parametrize("at", range(len(EFFECTS)), ids=lambda at: f"{at} {EFFECTS[at]}")
def test_a_killed_agent_leaves_nothing_double_and_nothing_behind(
    world: World, at: int, verdict: str
) -> None:
    world.bound(mig_pod("p", allocation(6), allocation(0, LARGE, device=1)))
    process, _ = world.life()
    left = [at]

    def judge(_effect: str) -> str | None:
        left[0] -= 1
        return verdict if left[0] == -1 else None

    world.faults.verdict = judge
    with pytest.raises(CrashError):
        process.allocate(f"{GPU_A}-0", f"{GPU_A}-1")
    world.faults.verdict = lambda _effect: None
    successor, keeper = world.life()
    keeper.step_once()
    assert successor.allocate(f"{GPU_A}-0", f"{GPU_A}-1") == {
        "NVIDIA_VISIBLE_DEVICES": "MIG-13,MIG-1"
    }
    assert world.places() == {6: 1, 0: 4}
    assert identities(world, "p") == [MigIdentity("MIG-13", 13, 0), MigIdentity("MIG-1", 1, 0)]
    world.cluster.delete("uid-p")
    successor.deliver()
    keeper.step_once()
    assert world.places() == {}
    assert world.book.book == ()


@pytest.mark.parametrize("effect", ["create", "complete", "book", "journal", "erase"])
def test_what_fails_is_taken_back(world: World, effect: str) -> None:
    world.bound(mig_pod("p", allocation(6), allocation(0, LARGE, device=1)))
    process, keeper = world.life()
    seen: list[str] = []

    def judge(now: str) -> str | None:
        seen.append(now)
        return (
            "error"
            if now == effect and seen.count(effect) == (2 if effect == "create" else 1)
            else None
        )

    world.faults.verdict = judge
    with pytest.raises(AgentError, match="delete"):
        process.allocate(f"{GPU_A}-0", f"{GPU_A}-1")
    world.faults.verdict = lambda _effect: None
    assert world.cluster.lock_value is None
    assert world.places() == {}
    assert world.book.book == ()
    keeper.step_once()
    assert world.grant_log.records() == ()


# --- what is nobody's --------------------------------------------------------------------------


def test_an_idle_gpu_is_put_into_mig_mode_and_emptied(world: World) -> None:
    world.maker.enabled = False
    put(world, stranger(0), stranger(4, 4))
    _, keeper = world.life()
    keeper.step_once()
    assert world.maker.enabled
    assert world.places() == {}


@pytest.mark.parametrize("enabled", [True, False], ids=["divided", "whole"])
def test_a_busy_gpu_is_left_as_it_is(world: World, enabled: bool) -> None:
    world.maker.enabled = enabled
    put(world, stranger(0), stranger(3))
    world.maker.busy = {7}
    _, keeper = world.life()
    keeper.step_once()
    assert world.maker.enabled is enabled
    assert world.places() == {0: 1, 3: 1}


def test_nothing_is_destroyed_before_the_pods_are_known(world: World) -> None:
    put(world, stranger(0))
    process, keeper = world.life()
    process.pods.update(lambda table: type(table)(dict(table.pods), synced=False))
    keeper.step_once()
    assert world.places() == {0: 1}


@pytest.mark.parametrize("effect", ["list pods", "look", "kubelet"])
def test_in_doubt_everything_stays(world: World, effect: str) -> None:
    put(world, stranger(0))
    _, keeper = world.life()
    world.faults.verdict = lambda now: "error" if now == effect else None
    keeper.step_once()
    assert world.places() == {0: 1}
    world.faults.verdict = lambda _effect: None
    keeper.step_once()
    assert world.places() == {}


def test_an_unreadable_annotation_keeps_what_might_be_its_own(world: World) -> None:
    world.bound(mig_pod("ours", allocation(6)))
    process, keeper = world.life()
    process.allocate(*IDS)
    put(world, stranger(0))
    world.cluster.put(replace(mig_pod("odd", allocation(1)), annotations={
        **mig_pod("odd", allocation(1)).annotations, MIG_ALLOCATIONS: "[{]"}))  # fmt: skip
    world.cluster.delete("uid-ours")
    process.deliver()
    keeper.step_once()
    assert world.places() == {0: 1}  # ours went: our book says whose it was
    world.cluster.delete("uid-odd")
    process.deliver()
    keeper.step_once()
    assert world.places() == {}


@pytest.mark.parametrize(
    ("changes", "left"),
    [
        pytest.param({"phase": "Succeeded"}, {}, id="succeeded"),
        pytest.param({"phase": "Failed"}, {}, id="failed"),
        pytest.param({"phase": "Running"}, {6: 1}, id="running"),
        pytest.param({"phase": "Running", "deleting": True}, {6: 1}, id="in its grace period"),
    ],
)
def test_an_instance_lives_as_long_as_its_pod(
    world: World, changes: dict[str, object], left: dict[int, int]
) -> None:
    world.bound(mig_pod("p", allocation(6)))
    process, keeper = world.life()
    process.allocate(*IDS)
    world.cluster.put(replace(world.cluster.pods["uid-p"], **changes))  # type: ignore[arg-type]
    process.deliver()
    keeper.step_once()
    assert world.places() == left


def test_what_another_plugin_made_is_taken_up(world: World) -> None:
    """The pod's annotation and the driver agree: HAMi's plugin served it before us."""
    put(world, stranger(2), stranger(5))
    made = replace(allocation(2), identity=MigIdentity("MIG-9", 9, 0))
    world.cluster.put(
        replace(mig_pod("old", made), phase="Running",
                annotations={**mig_pod("old", made).annotations,
                             MIG_ALLOCATIONS: encode_allocations([made])})
    )  # fmt: skip
    process, keeper = world.life()
    keeper.step_once()
    assert world.places() == {2: 1}
    assert [one.pod_uid for one in world.book.book] == ["uid-old"]
    world.cluster.delete("uid-old")
    process.deliver()
    keeper.step_once()
    assert world.places() == {}


def test_a_pod_cannot_claim_what_is_anothers(world: World) -> None:
    world.bound(mig_pod("owner", allocation(6)))
    process, keeper = world.life()
    process.allocate(*IDS)
    thief = replace(allocation(6), identity=MigIdentity("MIG-13", 13, 0))
    world.bound(mig_pod("thief", thief))
    process.deliver()
    with pytest.raises(AgentError, match="team/owner has its instance"):
        process.allocate(f"{GPU_A}-1")
    keeper.step_once()
    assert world.places() == {6: 1}
    assert [one.pod_uid for one in world.book.book] == ["uid-owner"]


def test_a_place_is_cleared_of_what_is_nobodys(world: World) -> None:
    put(world, stranger(0))
    world.bound(mig_pod("p", allocation(6)))
    process, keeper = world.life()
    keeper.step_once()
    assert world.places() == {}
    put(world, stranger(4, 4))
    assert process.allocate(*IDS)["NVIDIA_VISIBLE_DEVICES"] == "MIG-13"


def test_a_process_that_lingers_keeps_its_place(world: World) -> None:
    put(world, stranger(6))
    world.maker.busy = {13}
    world.bound(mig_pod("p", allocation(6)))
    process, _ = world.life()
    with pytest.raises(AgentError, match="still uses what was there before"):
        process.allocate(*IDS)
    assert world.places() == {6: 1}


def test_while_hami_divides_gpus_nothing_is_changed(world: World) -> None:
    put(world, stranger(0))
    world.apply_lock.by = HAMI
    world.bound(mig_pod("p", allocation(6)))
    process, keeper = world.life()
    keeper.step_once()
    with pytest.raises(AgentError, match=f"{HAMI}; delete the pod"):
        process.allocate(*IDS)
    assert world.places() == {0: 1}
    assert keeper.missing() == HAMI
    world.apply_lock.by = ""
    assert keeper.missing() == ""


@pytest.mark.parametrize("asked", ["list pods", "kubelet", "look"])
def test_what_hami_begins_while_we_ask_is_not_disturbed(world: World, asked: str) -> None:
    """We may wait 5 s for an answer, after we saw that nobody divides GPUs."""
    put(world, stranger(0))
    _, keeper = world.life()

    def begins(effect: str) -> None:
        if effect == asked:
            world.apply_lock.by = HAMI

    world.faults.verdict = begins
    keeper.step_once()
    assert world.places() == {0: 1}
    world.faults.verdict = lambda _effect: None
    world.apply_lock.by = ""
    keeper.step_once()
    assert world.places() == {}


def test_an_allocate_does_not_begin_beside_hami(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.bound(mig_pod("p", allocation(6)))
    process, _ = world.life()
    monkeypatch.setattr(world.apply_lock, "holder", lambda: "")  # it begins a moment later
    world.apply_lock.by = HAMI
    with pytest.raises(AgentError, match=f"{HAMI}; delete the pod"):
        process.allocate(*IDS)
    assert world.places() == {}


@pytest.mark.parametrize(
    ("annotation", "words"),
    [
        pytest.param("", "does not say which profile", id="none"),
        pytest.param("[]", "does not say which profile", id="empty"),
        pytest.param("{", "cannot be read", id="no JSON"),
        pytest.param(encode_allocations([allocation(6, gpu="GPU-else")]), "does not say", id="another GPU"),
        pytest.param(encode_allocations([replace(allocation(6), profile="9g.9gb")]), "does not have", id="no such profile"),
        pytest.param(encode_allocations([replace(allocation(1), placement=MigPlacement(7, 1))]), "does not have", id="no such place"),
        pytest.param(encode_allocations([replace(allocation(1), profile="1g.5gb+me")]), "migProfileAllowlist", id="not allowed"),
    ],
)  # fmt: skip
def test_what_cannot_be_made_is_refused(world: World, annotation: str, words: str) -> None:
    made = mig_pod("p", allocation(6))
    world.bound(replace(made, annotations={**made.annotations, MIG_ALLOCATIONS: annotation}))
    process, _ = world.life()
    with pytest.raises(AgentError, match=words):
        process.allocate(*IDS)
    assert world.places() == {}
    assert world.cluster.lock_value is None


def test_a_slot_of_an_older_scheduler_becomes_the_same_instance(world: World) -> None:
    """HAMi 2.9: `GPU-...[1-3]`, the fourth of the second geometry, without an annotation."""
    world.bound(pod("old", f"{GPU_A}[1-3],NVIDIA,4864,14:;"))
    process, _ = world.life()
    assert process.allocate(*IDS) == {"NVIDIA_VISIBLE_DEVICES": "MIG-13"}
    assert world.places() == {6: 1}
    later, keeper = world.life()
    keeper.step_once()
    assert later.allocate(*IDS) == {"NVIDIA_VISIBLE_DEVICES": "MIG-13"}


def test_a_slot_that_nobody_knows_is_refused(world: World) -> None:
    world.bound(pod("old", f"{GPU_A}[7-0],NVIDIA,4864,14:;"))
    process, _ = world.life()
    with pytest.raises(AgentError, match="knownMigGeometries has no geometry 7"):
        process.allocate(*IDS)
    assert world.places() == {}


def test_a_gpu_that_is_excluded_is_never_touched(world: World) -> None:
    put(world, stranger(0))
    _, keeper = world.life(sharing=replace(SHARING, excluded_uuids=frozenset({GPU_A})))
    keeper.step_once()
    assert world.places() == {0: 1}


def test_small_profiles_are_counted(world: World) -> None:
    world.bound(mig_pod("p", allocation(6, SMALL)))
    process, keeper = world.life()
    process.allocate(*IDS)
    world.cluster.delete("uid-p")
    process.deliver()
    keeper.step_once()
    assert world.counted == ["created", "destroyed"]
