"""Volcano's dialect: the vectors of its own codec, every other text, and whose turn it is."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.domain.choice import Evidence, Refusal, candidates, choose_anyway, choose_turn
from agent.domain.claims import MAX_CHARS
from agent.domain.gpu import Gpu, GpuInventory, Sharing
from agent.domain.grant_plan import GrantPolicy, control_disabled
from agent.domain.grants import Claim, Grant, GrantRecord
from agent.domain.handshake import answer
from agent.domain.matching import Turn, next_turn
from agent.domain.pods import Container, Pod, decode_node, decode_pod
from agent.domain.subjects import granted_by_others
from agent.domain.volcano import (
    BIND_PHASE,
    BIND_TIME,
    DECIDED,
    HANDSHAKE,
    LOCK,
    MEMORY,
    NUMBER,
    REGISTER,
    SERVED_TIME,
    TO_ALLOCATE,
    VGPU_NODE,
    VGPU_TIME,
    VolcanoRegister,
    decode,
    dialect,
    encode,
    erased,
    others_pending,
    pending,
)
from agent.errors import CountMismatch, MalformedAnnotation
from agent.services.own_annotations import own_keys
from tests.unit.fakes import NODE

ONE = dialect(lambda: 1)
A, B, C = "GPU-a,NVIDIA,3000,30:", "GPU-b,NVIDIA,5000,0:", "GPU-c,NVIDIA,1,2:"


def claim(uuid: str, memory_mib: int, cores: int, vendor: str = "NVIDIA") -> Claim:
    return Claim(uuid, vendor, memory_mib, cores)


CLAIM_A, CLAIM_B, CLAIM_C = claim("GPU-a", 3000, 30), claim("GPU-b", 5000, 0), claim("GPU-c", 1, 2)


# --- the codec ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "slots", "erases"),
    [
        pytest.param(A, ((CLAIM_A,),), ("",), id="one container"),
        pytest.param(
            A + "GPU-b,NVIDIA,3000,30:",
            ((CLAIM_A, claim("GPU-b", 3000, 30)),),
            ("",),
            id="one container, two GPUs",
        ),
        pytest.param(f"{A};{B}", ((CLAIM_A,), (CLAIM_B,)), (f";{B}", ";"), id="two containers"),
        pytest.param(f";{B}", ((), (CLAIM_B,)), (";",), id="the second of two"),
        pytest.param(
            f"{A};{B};{C}",
            ((CLAIM_A,), (CLAIM_B,), (CLAIM_C,)),
            (f";{B};{C}", f";;{C}", ";;"),
            id="three containers",
        ),
        pytest.param("", (), (), id="empty"),
        pytest.param(
            "GPU-a,NVIDIA-Tesla,3000,1:",
            ((claim("GPU-a", 3000, 1, "NVIDIA-Tesla"),),),
            (),
            id="another type is not ours",
        ),
        pytest.param(
            f"GPU-x,NVIDIA-Tesla,1,1:{A};{B}",
            ((claim("GPU-x", 1, 1, "NVIDIA-Tesla"), CLAIM_A), (CLAIM_B,)),
            (f"GPU-x,NVIDIA-Tesla,1,1:;{B}", "GPU-x,NVIDIA-Tesla,1,1:;"),
            id="another type stays",
        ),
        pytest.param(
            "GPU-a,NVIDIA,3000,30,extra:", ((CLAIM_A,),), ("",), id="further fields are ignored"
        ),
    ],
)
def test_volcanos_vectors(
    text: str, slots: tuple[tuple[Claim, ...], ...], erases: tuple[str, ...]
) -> None:
    assert decode(text, 1) == slots
    seen = []
    while open_slots := pending(slots):
        slots = erased(slots, next(iter(open_slots)))
        seen.append(encode(slots, 1))
    assert tuple(seen) == erases


@pytest.mark.parametrize(
    ("text", "why"),
    [
        pytest.param("GPU-a,NVIDIA,3000:", "has 3 of the 4 fields", id="Volcano's plugin panics"),
        pytest.param("GPU-a,NVIDIA:", "has 2 of the 4 fields", id="two fields"),
        pytest.param("GPU-a,NVIDIA,abc,30:", "the memory 'abc' is no number", id="no number"),
        pytest.param("GPU-a,NVIDIA,,30:", "the memory '' is no number", id="empty number"),
        pytest.param("GPU-a,NVIDIA,-1,30:", "the memory '-1' is no number", id="negative"),
        pytest.param("GPU-a,NVIDIA,1,9999999999:", "the core", id="more than 32 bits"),
        pytest.param("GPU-a,NVIDIA,1,101:", "from 0 to 100", id="more cores than a GPU has"),
        pytest.param("GPU-a,NVIDIA, 1,1:", "the memory ' 1'", id="blanks"),
        pytest.param(";" * 5000, "more than 2048 containers", id="too many containers"),
        pytest.param("," * (MAX_CHARS + 1), "characters", id="too long"),
        pytest.param(A * 1025, "more than 1024 vGPUs", id="too many vGPUs"),
        pytest.param((A * 60 + ";") * 20, "more than 1024 vGPUs", id="of all containers"),
        pytest.param((A + ";") * 2000, "more than 1024 vGPUs", id="one of each container"),
    ],
)
def test_what_cannot_be_read_is_refused_with_the_reason(text: str, why: str) -> None:
    with pytest.raises(MalformedAnnotation, match=r"volcano\.sh/devices-to-allocate") as refused:
        decode(text, 1)
    assert why in str(refused.value)


@given(st.text(alphabet="GPU-ab,NVIDIA0123456789:; \x00é", max_size=60), st.integers(1, 100))
def test_any_text_is_read_or_refused(text: str, factor: int) -> None:
    try:
        slots = decode(text, factor)
    except MalformedAnnotation:
        return
    for place in pending(slots):
        assert place not in pending(erased(slots, place))
    assert decode(encode(slots, factor), factor) == (slots if slots != ((),) else ())


WORDS = st.text(alphabet="abcG-", min_size=1, max_size=8)
NUMBERS = st.integers(0, 2**31 - 1)


@given(
    st.lists(
        st.lists(
            st.tuples(WORDS, st.just("NVIDIA"), NUMBERS, st.integers(0, 100))
            | st.tuples(WORDS, st.just("DCU"), NUMBERS, NUMBERS)
        ),
        min_size=1,
        max_size=4,
    ),
    st.integers(1, 1000),
)
def test_a_decision_survives_the_wire(
    slots: list[list[tuple[str, str, int, int]]], factor: int
) -> None:
    claims = tuple(
        tuple(Claim(uuid, vendor, units * factor, cores) for uuid, vendor, units, cores in slot)
        for slot in slots
    )
    text = encode(claims, factor)
    assert decode(text, factor) == (claims if text else ())


def test_memory_is_in_units_of_the_factor() -> None:
    assert decode(A, 10) == ((claim("GPU-a", 30000, 30),),)
    assert encode(decode(f"{A};{B}", 10), 10) == f"{A};{B}"


# --- pods -----------------------------------------------------------------------------------------


def container(name: str, vgpus: int = 1, kind: str = "app", *, listed: bool = True) -> Container:
    return Container(name=name, vgpus=vgpus, kind=kind, listed=listed and kind == "app")


LOG = container("log", 0, listed=False)
MEMORY_ALONE = container("m", 0)


def pod(
    name: str, decision: str, *containers: Container, time: str = "1760929622", **changes: object
) -> Pod:
    """A pod as Volcano's scheduler binds it to our node."""
    whole = Pod(
        namespace="team",
        name=name,
        uid=f"uid-{name}",
        node_name=NODE,
        phase="Pending",
        resource_version="1",
        annotations={
            TO_ALLOCATE: decision,
            VGPU_NODE: NODE,
            VGPU_TIME: time,
            BIND_PHASE: "allocating",
            BIND_TIME: time if len(time) < len(SERVED_TIME) else "1760929622",
        },
        containers=containers or (container("main"),),
    )
    return replace(whole, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("containers", "decision", "vgpus", "expected"),
    [
        pytest.param([container("a")], A, 1, ("a", [CLAIM_A], "", True), id="one container"),
        pytest.param([LOG, container("a")], A, 1, ("a", [CLAIM_A], "", True),
                     id="a container without GPU comes first"),
        pytest.param([LOG, container("a"), LOG, container("b")], f"{A};{B}", 1,
                     ("a", [CLAIM_A], f";{B}", False), id="containers without GPU in between"),
        pytest.param([LOG, container("a"), LOG, container("b")], f";{B}", 1,
                     ("b", [CLAIM_B], ";", True), id="the second of them"),
        pytest.param([container("a", 2), container("b")], f"{A}{C};{B}", 2,
                     ("a", [CLAIM_A, CLAIM_C], f";{B}", False),
                     id="containers that ask for different numbers"),
        pytest.param([MEMORY_ALONE, container("b")], f"{A};{B}", 1,
                     ("b", [CLAIM_B], f"{A};", True),
                     id="a container with a limit of memory alone, which nobody asks for"),
        pytest.param([container("zero", 0), container("b")], f";{B}", 1,
                     ("b", [CLAIM_B], ";", True), id="a limit of zero has an empty slot"),
        pytest.param([container("i", 1, "init"), container("b")], B, 1,
                     ("i", [CLAIM_B], B, False), id="an init container shares the later one's"),
        pytest.param([container("i", 1, "init"), container("a", 2), container("b")],
                     f"{A}{C};{B}", 1, ("i", [CLAIM_B], f"{A}{C};{B}", False),
                     id="an init container shares those of the one that asks for as many"),
        pytest.param([container("a")], f"{A};{B}", 1, ("a", [CLAIM_B], f"{A};", False),
                     id="more slots than containers: the last are theirs"),
        pytest.param([container("a")], "GPU-a,NVIDIA-Tesla,1,1:", 1, None, id="not ours"),
        pytest.param([container("a")], "", 1, None, id="nothing left"),
        pytest.param([container("a", 2)], A, 1, None, id="another number is asked for"),
    ],
)  # fmt: skip
def test_whose_turn_it_is(
    containers: list[Container],
    decision: str,
    vgpus: int,
    expected: tuple[str, list[Claim], str, bool] | None,
) -> None:
    turn = next_turn(pod("p", decision, *containers), vgpus, dialect=ONE)
    found = turn and (turn.container.name, list(turn.claims), turn.remaining, turn.last)
    assert found == expected


@pytest.mark.parametrize(
    "containers",
    [
        pytest.param([container("s", 1, "sidecar"), container("b")], id="a sidecar"),
        pytest.param([container("i", 2, "init"), container("b")], id="nobody asks for as many"),
    ],
)
def test_an_init_container_that_cannot_share_is_refused(containers: list[Container]) -> None:
    made = pod("p", B, *containers)
    assert next_turn(made, containers[0].vgpus, dialect=ONE) is None
    with pytest.raises(CountMismatch, match="decides nothing for init containers"):
        next_turn(made, containers[0].vgpus, in_order=False, dialect=ONE)


def chosen(
    pods: list[Pod], vgpus: int = 1, records: tuple[GrantRecord, ...] = ()
) -> Turn | Refusal | None:
    evidence = Evidence(node_name=NODE, pods=pods, records=records, dialect=ONE)
    return choose_turn(evidence, vgpus, ("id",)) or choose_anyway(evidence, vgpus)


def test_the_earliest_pod_with_such_a_container_is_served() -> None:
    late = pod("late", A, time="200")
    early = pod("early", B, time="100")
    two = pod("two", f"{A}{C}", container("main", 2), time="50")
    for pods in ([late, early, two], [two, early, late]):
        turn = chosen(pods)
        assert isinstance(turn, Turn)
        assert turn.pod.name == "early"
    turn = chosen([late, early, two], vgpus=2)
    assert isinstance(turn, Turn)
    assert turn.pod.name == "two"


def test_a_pod_with_two_gpu_containers_is_found_at_its_first() -> None:
    """Volcano's plugin compares the sum of all that is left with what is asked for."""
    turn = chosen([pod("p", f"{A};{B}", container("a"), container("b"))])
    assert isinstance(turn, Turn)
    assert (turn.container.name, turn.claims) == ("a", (CLAIM_A,))


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(pod("p", A, node_name="elsewhere"), id="on another node"),
        pytest.param(pod("p", A, phase="Failed"), id="failed"),
        pytest.param(pod("p", A, deleting=True), id="being deleted"),
        pytest.param(
            pod("p", A).with_annotations({VGPU_NODE: "elsewhere"}), id="decided for another node"
        ),
        pytest.param(pod("p", A).with_annotations({BIND_PHASE: "failed"}), id="given up"),
    ],
)
def test_who_is_no_candidate(other: Pod) -> None:
    assert candidates(Evidence(node_name=NODE, pods=[other], dialect=ONE)) == []


def test_a_served_pod_comes_last() -> None:
    served, waiting = pod("a", "", time=SERVED_TIME), pod("b", A, time="7")
    order = candidates(Evidence(node_name=NODE, pods=[served, waiting], dialect=ONE))
    assert [one.name for one in order] == ["b", "a"]


def test_an_init_container_does_not_take_the_app_containers_turn() -> None:
    made = pod("p", B, container("i", 1, "init"), container("b"))
    first = chosen([made])
    assert isinstance(first, Turn)
    record = GrantRecord(
        pod_uid=made.uid,
        namespace="team",
        pod_name="p",
        container=first.container.name,
        device_ids=("id",),
        claims=first.claims,
        grant=Grant(),
        granted_at_s=1.0,
        answered=True,
    )
    second = chosen([made], records=(record,))
    assert isinstance(second, Turn)
    assert (first.container.name, second.container.name, second.last) == ("i", "b", True)


def test_an_unreadable_decision_keeps_nobody_else_waiting() -> None:
    broken, good = pod("a", "GPU-a,NVIDIA,1:", time="1"), pod("b", B, time="2")
    turn = chosen([broken, good])
    assert isinstance(turn, Turn)
    assert turn.pod.name == "b"
    refusal = chosen([broken])
    assert isinstance(refusal, Refusal)
    assert isinstance(refusal.error, MalformedAnnotation)


@pytest.mark.parametrize(
    ("decision", "waits"),
    [
        pytest.param(";;", False, id="nothing left"),
        pytest.param("GPU-a,NVIDIA-Tesla,1,1:;", True, id="somebody else's GPU"),
        pytest.param(f"{A};", True, id="of a container that nobody asks for"),
    ],
)
def test_the_bind_ends_when_no_gpu_is_named_any_more(decision: str, *, waits: bool) -> None:
    assert others_pending(pod("p", decision)) is waits


def test_a_bind_ends_with_the_latest_time() -> None:
    assert ONE.ending("failed") == {BIND_PHASE: "failed", VGPU_TIME: "18446744073709551615"}


@pytest.mark.parametrize(
    ("limits", "listed"),
    [
        pytest.param({NUMBER: 1}, True, id="number"),
        pytest.param({MEMORY: 100}, True, id="memory alone"),
        pytest.param({NUMBER: 0}, True, id="zero"),
        pytest.param({"cpu": 1}, False, id="neither"),
    ],
)
def test_which_containers_the_scheduler_lists(limits: dict[str, int], *, listed: bool) -> None:
    spec = {"containers": [{"name": "a", "resources": {"limits": limits}}]}
    read = decode_pod({"spec": spec}, resource=NUMBER, also=(MEMORY,))
    assert read.containers[0].listed is listed


@pytest.mark.parametrize(
    ("value", "disabled"),
    [
        pytest.param(None, False, id="not there"),
        pytest.param("true", True, id="true"),
        pytest.param("yes", True, id="any word"),
        pytest.param("", True, id="empty, or from elsewhere"),
        pytest.param("false", False, id="false means false"),
        pytest.param("0", False, id="zero means false"),
    ],
)
def test_limits_are_off_where_the_variable_is_there(value: str | None, *, disabled: bool) -> None:
    asking = Container(name="a", control_disabled=value)
    allowed = GrantPolicy(any_value_disables=True, allow_disable_control=True)
    assert control_disabled(asking, allowed) is disabled
    assert control_disabled(asking, GrantPolicy(any_value_disables=True)) is False


# --- the node -------------------------------------------------------------------------------------

GPUS = GpuInventory.of(
    [
        Gpu(uuid="GPU-a", index=0, name="NVIDIA A40", memory_mib=46068, minor=2),
        Gpu(uuid="GPU-b", index=1, name="Tesla T4", memory_mib=15360, minor=0),
        Gpu(uuid="GPU-c", index=2, name="odd,name:x", memory_mib=100, minor=1,
            unhealthy_reason="xid 79"),
    ]
)  # fmt: skip


def test_the_register_annotation() -> None:
    register = VolcanoRegister(sharing=Sharing(memory_scaling=2.0), factor=lambda: 3)
    text = register.text(GPUS)
    assert text == (
        "GPU-b,10,5120,NVIDIA-Tesla T4,true,hami-core:"
        "GPU-c,10,33,NVIDIA-odd name x,false,hami-core:"
        "GPU-a,10,15356,NVIDIA-NVIDIA A40,true,hami-core:"
    )
    assert register.same(text, GPUS)
    records = text.split(":")
    assert not register.same(":".join([records[1], records[0], *records[2:]]), GPUS)
    assert register.further(GPUS) == {"vgpu-agent/gpu-memory-factor": "3"}
    assert register.further(GpuInventory.of([])) == {}


@pytest.mark.parametrize(
    ("value", "answers"),
    [
        pytest.param(None, True, id="not there: the scheduler would overlook the node"),
        pytest.param("Requesting_2026.11.21 04:00:00", True, id="asked"),
        pytest.param("Deleted_2026.11.21 04:00:00", True, id="given up"),
        pytest.param("Reported 2026-11-21 04:00:00 +0000 UTC", False, id="reported"),
    ],
)
def test_the_handshake_is_begun_and_answered(value: str | None, *, answers: bool) -> None:
    due = answer(value, now_s=0.0, since_last_s=100.0, begins=ONE.handshake_begins)
    assert due.text.startswith("Reported") is answers


@pytest.mark.parametrize(
    ("value", "waits_s"),
    [
        pytest.param("Requesting_2026.11.21 04:00:00", 20.0, id="a question may wait"),
        pytest.param("Deleted_2026.11.21 04:00:00", 0.0, id="a node that is out may not"),
    ],
)
def test_the_scheduler_cannot_make_the_agent_write_all_the_time(value: str, waits_s: float) -> None:
    """Each answer is a change of the Node, and makes it ask again."""
    spacing_s = ONE.handshake_spacing_s
    due = answer(value, now_s=0.0, since_last_s=5.0, spacing_s=spacing_s, begins=True)
    assert (due.wait_s, spacing_s < 60) == (waits_s, True)


def test_a_pod_without_a_time_comes_last() -> None:
    timed, without = pod("a", A, time="9"), pod("b", B)
    without = without.with_annotations({VGPU_TIME: None})
    order = candidates(Evidence(node_name=NODE, pods=[without, timed], dialect=ONE))
    assert [one.name for one in order] == ["a", "b"]


def test_what_is_kept_of_the_node() -> None:
    kept = {LOCK: "2026-11-21T04:00:00Z", REGISTER: "x", HANDSHAKE: "y"}
    node = decode_node({"metadata": {"annotations": {**kept, "other/key": "z"}}})
    assert node.annotations == kept


def test_whose_annotations_are_taken_back() -> None:
    assert own_keys(handshake=True, dialect=ONE) == (
        REGISTER,
        "vgpu-agent/gpu-memory-factor",
        HANDSHAKE,
    )


# --- those that Volcano's plugin granted before us ------------------------------------------------


@pytest.mark.parametrize(
    ("decided", "uuids"),
    [
        pytest.param(f"{A};{B}", ["GPU-b"], id="by its place among those that are listed"),
        pytest.param(A, [], id="the places do not fit"),
        pytest.param("GPU-a,NVIDIA,1", [], id="unreadable"),
    ],
)
def test_a_container_that_another_plugin_granted_has_its_gpus(
    decided: str, uuids: list[str]
) -> None:
    """Or its processes would be reported for using a GPU without a grant."""
    running = replace(pod("p", ";", container("a"), LOG, container("b")), phase="Running")
    running = running.with_annotations({DECIDED: decided})
    [found] = granted_by_others([("uid-p", "b")], frozenset(), {"uid-p": running}, 0.0)
    assert [claim.uuid for claim in found.claims] == uuids
    assert all(not claim.memory_mib for claim in found.claims), "the unit is not known"
