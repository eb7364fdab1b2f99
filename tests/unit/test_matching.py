"""Which pod and which container an Allocate is for."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from agent.domain.choice import (
    Evidence,
    Refusal,
    candidates,
    choose_anyway,
    choose_turn,
    is_locked_for,
    left_behind,
    lock_is_for,
)
from agent.domain.claims import TO_ALLOCATE
from agent.domain.dialect import DECIDED, other_vendors_pending
from agent.domain.grants import Claim, Grant, GrantRecord
from agent.domain.matching import Turn, next_turn, open_slots_left
from agent.domain.nodelock import decode_lock
from agent.domain.pods import Container, Pod
from agent.errors import CountMismatch, MalformedAnnotation
from tests.unit.fakes import NODE, container, lock_of, pod

A, B, C = "GPU-a,NVIDIA,1,0:", "GPU-b,NVIDIA,2,0:", "GPU-c,NVIDIA,3,0:"
MEMORY = {"GPU-a": 1, "GPU-b": 2, "GPU-c": 3}


def init(name: str, vgpus: int = 1) -> Container:
    return container(name, vgpus, "init")


def sidecar(name: str, vgpus: int = 1) -> Container:
    return container(name, vgpus, "sidecar")


@pytest.mark.parametrize(
    ("containers", "text", "served", "expected"),
    [
        pytest.param((container("m"),), f"{A};", (), ("m", "GPU-a", ";", True), id="one container"),
        pytest.param(
            (container("m"), container("n")),
            f"{A};{B};",
            (),
            ("m", "GPU-a", f";{B};", False),
            id="the first of two",
        ),
        pytest.param(
            (container("m"), container("n")),
            f";{B};",
            ("m",),
            ("n", "GPU-b", ";;", True),
            id="the second of two",
        ),
        pytest.param(
            (container("m"), container("n")),
            f";{B};;",
            ("m",),
            ("n", "GPU-b", ";;;", True),
            id="the second, after an erase that let the text grow",
        ),
        pytest.param(
            (container("x", 0), container("m"), container("y", 0), container("n")),
            f";{A};;{B};",
            (),
            ("m", "GPU-a", f";;;{B};", False),
            id="containers without vGPUs in between",
        ),
        pytest.param(
            (init("i"), container("m")),
            f"{A};{B};",
            (),
            ("i", "GPU-a", f";{B};", False),
            id="init first",
        ),
        pytest.param(
            (init("i"), container("m")),
            f";{B};",
            ("i",),
            ("m", "GPU-b", ";;", True),
            id="then the app",
        ),
        pytest.param(
            (sidecar("s"), init("i", 0), container("m")),
            f"{A};;{B};",
            (),
            ("s", "GPU-a", f";;{B};", False),
            id="a sidecar is in the order of init containers",
        ),
        pytest.param(
            (init("i", 0), container("x", 0), container("m")),
            f";{A};",
            (),
            ("m", "GPU-a", ";;", True),
            id="app containers only, as HAMi up to 2.8",
        ),
        pytest.param(
            (container("x", 0), container("m"), container("n")),
            f"{A};{B};",
            (),
            ("m", "GPU-a", f";{B};", False),
            id="the leading empty slot is missing (2.10.0)",
        ),
        pytest.param(
            (container("m"), container("x", 0), container("n")),
            f"{A};{B};",
            (),
            ("m", "GPU-a", f";{B};", False),
            id="an empty slot in between is missing (2.10.0)",
        ),
        pytest.param(
            (container("m"), container("x", 0), container("n")),
            f";{B};",
            ("m",),
            ("n", "GPU-b", ";;", True),
            id="and the rest of it",
        ),
        pytest.param(
            (container("m"), container("x", 0)),
            f"{A};,,0,0:;",
            (),
            ("m", "GPU-a", ";,,0,0:;", True),
            id="padding at the end (up to 2.6)",
        ),
        pytest.param(
            (container("x", 0), container("m")),
            f"{A};,,0,0:;",
            (),
            ("m", "GPU-a", ";,,0,0:;", True),
            id="padding at the end, though the first has none",
        ),
        pytest.param(
            (container("m"), container("n")),
            f"{A};{B}",
            (),
            ("m", "GPU-a", f";{B};", False),
            id="joined instead of terminated",
        ),
        pytest.param(
            (init("i"), container("m"), container("n")),
            f"{B};",
            (),
            ("n", "GPU-b", ";", True),
            id="one slot left: it belongs to the last container",
        ),
        pytest.param(
            (container("m"), container("n"), container("o")),
            f"{A};;{C};",
            (),
            ("m", "GPU-a", f";;{C};", False),
            id="a place is believed even if nobody knows who had the empty one",
        ),
        pytest.param(
            (init("i"), container("m"), container("n")),
            f"{A};;{C};",
            (),
            ("i", "GPU-a", f";;{C};", False),
            id="so is the place of an init container",
        ),
        pytest.param(
            (init("i", 0), container("m"), container("n"), container("o")),
            f"{A};;{C};",
            (),
            ("m", "GPU-a", f";;{C};", False),
            id="also a place among app containers only",
        ),
        pytest.param(
            (container("m"), container("x", 0), container("n", 2)),
            f"{A};",
            (),
            ("m", "GPU-a", ";", True),
            id="one slot left: the count says whose it is",
        ),
        pytest.param(
            (container("m"),),
            "GPU-a[1-0],NVIDIA,1,0:;",
            (),
            ("m", "GPU-a[1-0]", ";", True),
            id="a MIG suffix stays in the claim",
        ),
    ],
)
def test_next_turn(
    containers: tuple[Container, ...],
    text: str,
    served: tuple[str, ...],
    expected: tuple[str, str, str, bool],
) -> None:
    turn = next_turn(pod("p", text, *containers), 1, served=served)
    assert turn is not None
    assert (turn.container.name, turn.claims[0].uuid, turn.remaining, turn.last) == expected


@pytest.mark.parametrize(
    ("containers", "text", "vgpus"),
    [
        pytest.param((container("m"),), ";", 1, id="nothing is left"),
        pytest.param((container("m"),), f"{A};", 2, id="no container asks for as many"),
        pytest.param((container("m", 0),), f"{A};", 1, id="no container asks for any"),
        pytest.param(
            (container("m", 2), container("n")), f"{A}{B};{C};", 1, id="it is not n's turn"
        ),
        pytest.param((container("m"),), ",,0,0:;", 1, id="only padding"),
    ],
)
def test_no_turn(containers: tuple[Container, ...], text: str, vgpus: int) -> None:
    assert next_turn(pod("p", text, *containers), vgpus) is None


def test_no_turn_without_the_annotation() -> None:
    bare = pod("p", "")
    others = {k: v for k, v in bare.annotations.items() if k != TO_ALLOCATE}
    assert next_turn(replace(bare, annotations=others), 1) is None


def test_a_slot_of_the_right_size_when_the_order_does_not_help() -> None:
    both = pod("p", f"{A}{B};{C};", container("m", 2), container("n"))
    turn = next_turn(both, 1, in_order=False)
    assert turn is not None
    assert (turn.container.name, turn.remaining, turn.last) == ("n", f"{A}{B};;", False)


def test_counts_that_do_not_agree() -> None:
    with pytest.raises(
        CountMismatch, match=r"main of pod team/p asks for 1 vGPU\(s\), but .* aside 2 for"
    ):
        next_turn(pod("p", f"{A}{B};"), 1, in_order=False)


def test_an_unreadable_annotation() -> None:
    with pytest.raises(MalformedAnnotation):
        next_turn(pod("p", "GPU-a,NVIDIA,x,0:;"), 1)
    assert not open_slots_left(pod("p", "GPU-a,NVIDIA,x,0:;"))


@pytest.mark.parametrize(
    ("annotations", "waits"),
    [
        pytest.param({}, False, id="no other vendor"),
        pytest.param({"hami.io/dcu-devices-to-allocate": "D,DCU,1,1:;"}, True, id="one waits"),
        pytest.param({"hami.io/dcu-devices-to-allocate": ";;"}, False, id="it is through"),
        pytest.param({"hami.io/dcu-devices-allocated": "D,DCU,1,1:;"}, False, id="another key"),
    ],
)
def test_other_vendors(annotations: Mapping[str, str], *, waits: bool) -> None:
    assert other_vendors_pending(pod("p", f"{A};", annotations=annotations)) is waits


# --- the pod -------------------------------------------------------------------------------------


def record(
    of: Pod, name: str, *ids: str, uuid: str = "GPU-a", answered: bool = True
) -> GrantRecord:
    return GrantRecord(
        pod_uid=of.uid,
        namespace=of.namespace,
        pod_name=of.name,
        container=name,
        device_ids=ids,
        claims=(Claim(uuid, "NVIDIA", MEMORY[uuid], 0),),
        grant=Grant(envs={"for": f"{of.name}/{name}"}),
        granted_at_s=1.0,
        answered=answered,
    )


EARLY, LATE = "1760929600", "1760929700"
P, Q = pod("p", f"{A};", bind_time=EARLY), pod("q", f"{B};", bind_time=LATE)
ONLY_INIT = (init("i"), container("m", 0))


@pytest.mark.parametrize(
    ("pods", "locked", "names"),
    [
        pytest.param((Q, P), None, ["p", "q"], id="by bind time"),
        pytest.param(
            (replace(Q, annotations=P.annotations), P), None, ["q", "p"], id="then by arrival"
        ),
        pytest.param((P, Q), Q, ["q", "p"], id="the lock goes first"),
        pytest.param(
            (replace(P, containers=ONLY_INIT), Q),
            Q,
            ["p", "q"],
            id="but behind a pod that is never locked and was bound before",
        ),
        pytest.param(
            (P, replace(Q, containers=ONLY_INIT)), P, ["p", "q"], id="not behind one bound later"
        ),
        pytest.param((P, replace(Q, deleting=True)), Q, ["p"], id="locked, but deleting"),
        pytest.param((P, replace(Q, phase="Failed")), Q, ["p"], id="locked, but failed"),
        pytest.param((P, replace(Q, node_name="other")), Q, ["p"], id="locked, on another node"),
        pytest.param(
            (P, Q.with_annotations({"hami.io/vgpu-node": "other"})),
            Q,
            ["p"],
            id="locked, meant for another node",
        ),
        pytest.param(
            (P, Q.with_annotations({"hami.io/bind-phase": "failed"})),
            Q,
            ["p"],
            id="locked, but its bind failed",
        ),
        pytest.param(
            (P, Q.with_annotations({"hami.io/bind-phase": "success"})),
            None,
            ["p", "q"],
            id="bind-phase success counts (2.9)",
        ),
        pytest.param(
            (P, Q.with_annotations({"hami.io/bind-phase": None})), None, ["p"], id="not bound"
        ),
        pytest.param(
            (P, Q.with_annotations({"hami.io/bind-time": None})), None, ["p"], id="no bind time"
        ),
        pytest.param(
            (P, Q.with_annotations({"hami.io/bind-time": None})),
            Q,
            ["q", "p"],
            id="no bind time, but locked",
        ),
        pytest.param(
            (P.with_annotations({"hami.io/bind-time": "soon"}), Q),
            None,
            ["q", "p"],
            id="an unreadable bind time is late",
        ),
        pytest.param((P, replace(Q, phase="Running")), None, ["p"], id="running already"),
    ],
)
def test_candidates(pods: tuple[Pod, ...], locked: Pod | None, names: list[str]) -> None:
    lock = decode_lock(lock_of(locked)) if locked else None
    found = candidates(Evidence(node_name=NODE, pods=pods, lock=lock))
    assert [candidate.name for candidate in found] == names


def test_what_goes_before_the_lock() -> None:
    evidence = Evidence(node_name=NODE, pods=(P, Q), lock=decode_lock(lock_of(Q)))
    hinted = replace(evidence, preferred=P.uid)
    going_on = replace(evidence, last_served=P.uid)
    given_up = replace(evidence, failed=frozenset({Q.uid}))
    for changed in (hinted, going_on, given_up):
        assert candidates(changed)[0] == P


def chosen(evidence: Evidence, *ids: str, vgpus: int = 1) -> tuple[str, str] | None:
    turn = choose_turn(evidence, vgpus, ids)
    return (turn.pod.name, turn.container.name) if turn else None


ERASED = P.with_annotations({TO_ALLOCATE: ";", "hami.io/bind-phase": "success"})
TWICE = pod("p", f";{B};", init("i"), container("m"), bind_time=EARLY)
BOTH_DONE = TWICE.with_annotations({TO_ALLOCATE: ";;"})
I_DONE, M_DONE = record(TWICE, "i", "x-1"), record(TWICE, "m", "x-1", uuid="GPU-b")


@pytest.mark.parametrize(
    ("evidence", "expected"),
    [
        pytest.param(
            Evidence(node_name=NODE, pods=(ERASED,), records=(record(P, "main", "x-1"),)),
            ("p", "main"),
            id="the same ids again",
        ),
        pytest.param(
            Evidence(node_name=NODE, pods=(ERASED,), records=(record(P, "main", "x-2"),)),
            None,
            id="other ids are another question",
        ),
        pytest.param(
            Evidence(
                node_name=NODE,
                pods=(replace(ERASED, phase="Succeeded"),),
                records=(record(P, "main", "x-1"),),
            ),
            None,
            id="the pod has ended: its ids are somebody else's now",
        ),
        pytest.param(
            Evidence(
                node_name=NODE,
                pods=(replace(ERASED, uid="uid-new"),),
                records=(record(P, "main", "x-1"),),
            ),
            None,
            id="a new pod of the same name",
        ),
        pytest.param(
            Evidence(node_name=NODE, pods=(ERASED,), records=(record(P, "gone", "x-1"),)),
            None,
            id="the pod has no such container any more",
        ),
        pytest.param(
            Evidence(node_name=NODE, pods=(ERASED, Q), records=(record(P, "main", "x-1"),)),
            ("q", "main"),
            id="a slot that waits goes before a repeated answer",
        ),
        pytest.param(
            Evidence(
                node_name=NODE,
                pods=(ERASED, Q),
                records=(record(P, "main", "x-1", answered=False),),
            ),
            ("p", "main"),
            id="an answer that never went out goes before a slot that waits",
        ),
        pytest.param(
            Evidence(node_name=NODE, pods=(TWICE,), records=(I_DONE,)),
            ("p", "m"),
            id="the app container uses the ids of the init container",
        ),
        pytest.param(
            Evidence(node_name=NODE, pods=(TWICE,), records=(replace(I_DONE, answered=False),)),
            ("p", "i"),
            id="unless the init container never got its answer",
        ),
        pytest.param(
            Evidence(node_name=NODE, pods=(BOTH_DONE,), records=(I_DONE, M_DONE)),
            ("p", "m"),
            id="of two with the same ids the younger is repeated",
        ),
        pytest.param(
            Evidence(node_name=NODE, pods=(pod("bad", "a,b:;", bind_time=EARLY), Q)),
            ("q", "main"),
            id="an unreadable annotation does not stop the others",
        ),
        pytest.param(
            Evidence(
                node_name=NODE,
                pods=(ERASED.with_annotations({"hami.io/bind-phase": "failed"}),),
                records=(record(P, "main", "x-1", answered=False),),
            ),
            None,
            id="a failed bind is not taken up again",
        ),
    ],
)
def test_the_choice(evidence: Evidence, expected: tuple[str, str] | None) -> None:
    assert chosen(evidence, "x-1") == expected


def test_a_crash_before_the_erase_gives_the_recorded_grant() -> None:
    before = record(P, "main", "x-1", answered=False)
    turn = choose_turn(Evidence(node_name=NODE, pods=(P,), records=(before,)), 1, ("x-1",))
    assert turn is not None
    assert turn.record == before
    assert turn.remaining == ";"


def test_a_record_of_other_claims_is_not_used() -> None:
    before = record(P, "main", "x-1", uuid="GPU-c", answered=False)
    turn = choose_turn(Evidence(node_name=NODE, pods=(P,), records=(before,)), 1, ("x-1",))
    assert turn is not None
    assert turn.record is None


def test_the_pod_that_cannot_be_served_is_named() -> None:
    bad = pod("bad", "a,b:;", bind_time=EARLY)
    evidence = Evidence(node_name=NODE, pods=(bad, pod("two", f"{A}{B};", container("m", 2))))
    refusal = choose_anyway(evidence, 1)
    assert isinstance(refusal, Refusal)
    assert refusal.pod == bad
    assert choose_anyway(evidence, 3) is None
    assert isinstance(choose_anyway(evidence, 2), Turn)


def test_a_container_that_has_its_grant_is_not_the_one_that_asks() -> None:
    mine = pod("p", f";{A}{B};", container("m"), container("n", 2))
    evidence = Evidence(node_name=NODE, pods=(mine,), records=(record(mine, "m", "x-1"),))
    assert choose_anyway(evidence, 1) is None  # a stranger asks: the pod's bind goes on
    unknown = replace(evidence, records=())
    assert isinstance(choose_anyway(unknown, 1), Refusal)


@pytest.mark.parametrize(
    ("changes", "state"),
    [
        pytest.param({TO_ALLOCATE: None}, "is missing", id="missing"),
        pytest.param({TO_ALLOCATE: ""}, "names no vGPU", id="empty"),
        pytest.param({TO_ALLOCATE: ";"}, "names no vGPU", id="all slots empty"),
        pytest.param({TO_ALLOCATE: "garbage"}, "names no vGPU", id="garbage"),
        pytest.param({TO_ALLOCATE: ",,0,0:;"}, "names no vGPU", id="padding"),
    ],
)
def test_a_pod_whose_decision_is_gone_is_named(
    changes: Mapping[str, str | None], state: str
) -> None:
    lost = P.with_annotations({DECIDED: f"{A};", **changes})
    refusal = choose_anyway(Evidence(node_name=NODE, pods=(lost,)), 1)
    assert isinstance(refusal, Refusal)
    assert refusal.pod == lost
    assert f"{TO_ALLOCATE}, in which the scheduler says on which GPU, {state}" in str(refusal.error)


@pytest.mark.parametrize(
    "evidence",
    [
        pytest.param(
            Evidence(node_name=NODE, pods=(pod("p", ";"),), records=(record(P, "main", "x-1"),)),
            id="its containers have their grants",
        ),
        pytest.param(
            Evidence(node_name=NODE, pods=(pod("p", ";", phase="success"),)), id="a success"
        ),
        pytest.param(
            Evidence(
                node_name=NODE,
                pods=(replace(pod("p", ";"), phase="Running"),),
                lock=decode_lock(lock_of(P)),
            ),
            id="it runs",
        ),
        pytest.param(
            Evidence(node_name=NODE, pods=(pod("p", ";", container("m", 0)),)),
            id="it asks for none of ours",
        ),
        pytest.param(
            Evidence(node_name=NODE, pods=(pod("p", ";", container("m", 2)),)),
            id="it asks for another number",
        ),
    ],
)
def test_a_stranger_who_asks_does_not_end_a_bind(evidence: Evidence) -> None:
    assert choose_anyway(evidence, 1) is None


# --- binds that nobody ends ----------------------------------------------------------------------


RUNS = replace(pod("p", f"{A};").with_annotations({DECIDED: f"{A};"}), phase="Running")


@pytest.mark.parametrize(
    ("left", "granted", "phase"),
    [
        pytest.param(pod("p", f"{A};"), False, None, id="under way"),
        pytest.param(pod("p", ";"), True, "success", id="all handed out"),
        pytest.param(pod("p", ";"), False, None, id="emptied by others: Allocate decides"),
        pytest.param(pod("p", ";", phase="success"), False, "success", id="only the lock is left"),
        pytest.param(pod("p", f"{A};", phase="failed"), False, "failed", id="given up"),
        pytest.param(
            replace(pod("p", f"{A};"), phase="Failed"), False, "failed", id="kubelet gave it up"
        ),
        pytest.param(
            replace(pod("p", ";"), phase="Failed"), False, "failed", id="emptied, then refused"
        ),
        pytest.param(replace(pod("p", ";"), phase="Failed"), True, "failed", id="granted, failed"),
        pytest.param(
            replace(pod("p", ";", phase="success"), phase="Failed"),
            True,
            "success",
            id="a success, failed later",
        ),
        pytest.param(
            replace(pod("p", "").with_annotations({TO_ALLOCATE: None}), phase="Failed"),
            False,
            "failed",
            id="no decision, then refused",
        ),
        pytest.param(replace(pod("p", "garbage"), phase="Failed"), False, "failed", id="garbage"),
        pytest.param(replace(pod("p", ";"), phase="Running"), False, "success", id="it runs"),
        pytest.param(replace(pod("p", ";"), phase="Succeeded"), False, "success", id="it ended"),
        pytest.param(pod("p", "a,b:;"), False, None, id="unreadable: Allocate decides"),
        pytest.param(
            replace(pod("p", "a,b:;"), phase="Failed"), False, "failed", id="unreadable, failed"
        ),
        pytest.param(RUNS, False, "failed", id="kubelet started it without asking"),
        pytest.param(
            replace(RUNS, annotations=pod("p", f";{A};", annotations={DECIDED: A}).annotations),
            True,
            None,
            id="it runs, and part of it was asked for",
        ),
        pytest.param(
            pod("p", "").with_annotations({TO_ALLOCATE: None}), False, None, id="no decision yet"
        ),
        pytest.param(
            replace(pod("p", ";", container("m", 0)), phase="Failed"), False, None, id="not ours"
        ),
    ],
)
def test_left_behind(left: Pod, phase: str | None, *, granted: bool) -> None:
    assert left_behind(left, granted=granted) == phase


LOCKED_AT = "2025-10-20T03:07:02Z"  # the bind time that `pod` gives


@pytest.mark.parametrize(
    ("owner", "taken_at", "its"),
    [
        pytest.param(pod("p", f"{A};"), LOCKED_AT, True, id="taken when it was bound"),
        pytest.param(pod("p", f"{A};"), "2025-10-20T03:06:59Z", True, id="a little before"),
        pytest.param(
            pod("p", f"{A};"), "2025-10-20T03:08:02Z", False, id="later: a new pod of that name"
        ),
        pytest.param(pod("p", f"{A};"), "noon", False, id="no telling when"),
        pytest.param(
            pod("p", f"{A};").with_annotations({"hami.io/bind-time": None}),
            LOCKED_AT,
            False,
            id="no telling when it was bound",
        ),
        pytest.param(pod("p", f"{A};", *ONLY_INIT), LOCKED_AT, False, id="never locked for"),
        pytest.param(pod("q", f"{A};"), LOCKED_AT, False, id="another pod's"),
    ],
)
def test_whose_lock(owner: Pod, taken_at: str, *, its: bool) -> None:
    lock = decode_lock(f"{taken_at},team,p")
    assert lock is not None
    assert lock_is_for(lock, owner) is its


def test_only_app_containers_are_locked_for() -> None:
    assert is_locked_for(pod("p", ""))
    assert not is_locked_for(pod("p", "", *ONLY_INIT))
