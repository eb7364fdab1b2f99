"""Who is said to use a GPU past its grant, who is not, and when the loop says it."""

import io
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from threading import Event

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent import logs
from agent.domain.accounting import GpuProcess
from agent.domain.bypass import (
    MIB,
    Allowed,
    Kind,
    Node,
    PodName,
    Whereabouts,
    allowances,
    judge,
    tolerated,
)
from agent.domain.enforcement import EXPLAINED, ContainerState, Reason, State
from agent.domain.gpu import Sharing
from agent.domain.grants import Claim, Grant, GrantRecord
from agent.domain.pods import Container, Pod
from agent.domain.subjects import Subject, of_record
from agent.errors import NvmlError
from agent.ports import ClusterEvent
from agent.services.detector import EVENT, EVICT_AGAIN_ROUNDS, EVICTED, Books, Detector
from agent.services.published import PodTable, Published
from agent.supervisor import Lifeline, Supervisor
from tests.unit.fakes import FakeGrantLog, gpus, unavailable
from tests.waiting import eventually

A, B = "GPU-aaaaaaaa-0000-4000-8000-000000000001", "GPU-bbbbbbbb-0000-4000-8000-000000000002"
UID, OTHER = "u1", "u2"
LIMIT_MIB = 8000


def claim(uuid: str = A, memory_mib: int = LIMIT_MIB, core_percent: int = 30) -> Claim:
    return Claim(uuid=uuid, vendor="NVIDIA", memory_mib=memory_mib, core_percent=core_percent)


def grant(*claims: Claim, container: str = "main", pod_uid: str = UID) -> Subject:
    return of_record(recorded(*claims, container=container, pod_uid=pod_uid))


def recorded(*claims: Claim, container: str = "main", pod_uid: str = UID) -> GrantRecord:
    return GrantRecord(
        pod_uid=pod_uid, namespace="ns", pod_name="p", container=container, device_ids=(),
        claims=claims or (claim(),), grant=Grant(), granted_at_s=1.0,
    )  # fmt: skip


def at(pod_uid: str = UID, container: str = "main", program: str = "python3") -> Whereabouts:
    return Whereabouts(start_time=5, program=program, pod_uid=pod_uid, container=container)


def node(
    processes: Mapping[str, Sequence[GpuProcess]],
    traced: Mapping[int, Whereabouts],
    *grants: Subject,
    **changes: object,
) -> Node:
    whole = Node(
        processes=processes,
        traced=traced,
        gpus={gpu.uuid: gpu for gpu in gpus(A, B).gpus},
        grants=grants,
        limits={},
        allowances={},
        synced=True,
        changed={},
        pods={
            UID: PodName(uid=UID, namespace="ns", name="p"),
            OTHER: PodName(uid=OTHER, namespace="tools", name="exporter"),
        },
        states=(),
    )
    return replace(whole, **changes)  # type: ignore[arg-type]


def holds(mib: int | None, pid: int = 70) -> GpuProcess:
    return GpuProcess(pid=pid, used_bytes=None if mib is None else mib * MIB)


NOT_LOADED = ContainerState(
    namespace="ns", pod="p", container="main", state=State.NOT_ENFORCEABLE, reason=Reason.NOT_LOADED
)
ABOVE = LIMIT_MIB + tolerated(LIMIT_MIB * MIB) // MIB + 1
MIG = {A: replace(gpus(A).gpus[0], mig_enabled=True)}
HALVES = [holds(ABOVE // 2), holds(ABOVE // 2 + 1, 71)]
WHOLE = claim(memory_mib=46068, core_percent=100)
DOUBLED = {(UID, "main"): {A: 2 * LIMIT_MIB * MIB}}
HALVED = {(UID, "main"): {A: LIMIT_MIB * MIB // 2}}
UNLIMITED = {(UID, "main"): {A: 0}}
USER, ELSE = {70: at()}, {70: at(OTHER, "")}
HOST = {70: Whereabouts(5, "miner")}


@pytest.mark.parametrize(
    ("seen", "kind"),
    [
        pytest.param(node({A: [holds(500)]}, USER, grant()), None, id="within its grant"),
        pytest.param(node({A: [holds(None)]}, USER, grant()), None, id="the driver does not tell"),
        pytest.param(node({A: [holds(500)]}, USER), Kind.NO_GRANT, id="no grant at all"),
        pytest.param(
            node({A: [holds(1)]}, USER, grant(container="side")), Kind.NO_GRANT,
            id="another container's grant",
        ),
        pytest.param(
            node({A: [holds(1)]}, USER, grant(pod_uid=OTHER)), Kind.NO_GRANT, id="another pod's"
        ),
        pytest.param(
            node({A: [holds(1)]}, {70: at(container="")}, grant(container="side")), None,
            id="whose container is not known may be any with a grant",
        ),
        pytest.param(node({B: [holds(1)]}, USER, grant()), Kind.OTHER_GPU, id="another GPU"),
        pytest.param(
            node({A: [holds(1)], B: [holds(1)]}, USER, grant(claim(A), claim(B))), None,
            id="two GPUs granted",
        ),
        pytest.param(node({A: [holds(ABOVE - 1)]}, USER, grant()), None, id="what is tolerated"),
        pytest.param(node({A: [holds(ABOVE)]}, USER, grant()), Kind.ABOVE_GRANT, id="above"),
        pytest.param(
            node({A: HALVES}, USER | {71: at()}, grant()), Kind.ABOVE_GRANT, id="two together"
        ),
        pytest.param(
            node({A: [holds(ABOVE)]}, USER, grant(claim(), claim())), None, id="two claims add up"
        ),
        pytest.param(
            node({A: [holds(40000)]}, USER, grant(claim(memory_mib=0))), None, id="no memory limit"
        ),
        pytest.param(
            node({A: [holds(ABOVE)]}, USER, grant(), limits=DOUBLED), None, id="raised live"
        ),
        pytest.param(
            node({A: [holds(7000)]}, USER, grant(), limits=HALVED), None,
            id="lowered live below what it holds",
        ),
        pytest.param(
            node({A: [holds(ABOVE)]}, USER, grant(), limits=HALVED), Kind.ABOVE_GRANT,
            id="lowered live, above the grant",
        ),
        pytest.param(
            node({A: [holds(40000)]}, USER, grant(), limits=UNLIMITED), None, id="freed live"
        ),
        pytest.param(
            node({A: [holds(ABOVE)]}, USER, grant(), limits={(OTHER, "main"): {A: 0}}),
            Kind.ABOVE_GRANT, id="another pod was freed live",
        ),
        pytest.param(
            node({A: [holds(ABOVE)]}, USER, grant(), limits={(UID, "side"): {A: 0}}),
            Kind.ABOVE_GRANT, id="another container was freed live",
        ),
        pytest.param(node({A: [holds(1)]}, HOST), Kind.HOST_PROCESS, id="a process of the host"),
        pytest.param(
            node({A: [holds(1)]}, {70: Whereabouts(5, "Xorg")}), None, id="an allowed program"
        ),
        pytest.param(
            node({A: [holds(1)]}, {70: at(program="Xorg")}), Kind.NO_GRANT,
            id="a pod's program of that name",
        ),
        pytest.param(node({A: [holds(1)]}, ELSE), None, id="an allowed namespace"),
        pytest.param(
            node({A: [holds(1)]}, {70: at("static")}), Kind.NO_GRANT, id="a pod that is not known"
        ),
        pytest.param(
            node({A: [holds(1)]}, {70: at("static")}, synced=False), None,
            id="before the pods are known",
        ),
        pytest.param(
            node({A: HALVES}, USER | {71: at(container="")}, grant()), Kind.ABOVE_GRANT,
            id="one whose container is not known counts with the pod",
        ),
        pytest.param(
            node({A: [holds(ABOVE)]}, USER, grant(), changed={(UID, "main"): {A: ABOVE * MIB}}),
            None, id="first seen, holding what it once might",
        ),
        pytest.param(
            node({A: [holds(2 * ABOVE)]}, USER, grant(), changed={(UID, "main"): {A: ABOVE * MIB}}),
            Kind.ABOVE_GRANT, id="first seen, holding more than it ever might",
        ),
        pytest.param(
            node({A: [holds(2 * ABOVE)]}, USER, grant(), changed={(UID, "main"): {A: 0}}), None,
            id="first seen, once without a limit",
        ),
        pytest.param(
            node({A: [holds(2 * ABOVE)]}, USER, grant(), changed={(UID, "main"): {}}), None,
            id="first seen, changed by an earlier release",
        ),
        pytest.param(
            node({A: [holds(ABOVE)]}, USER, grant(), allowances={(UID, "main", A): 1}),
            Kind.ABOVE_GRANT, id="seen before, below",
        ),
        pytest.param(node({A: [holds(1)]}, {}), None, id="one that cannot be seen"),
        pytest.param(node({A: [holds(1)]}, USER, gpus={}), None, id="a GPU that is not shared"),
        pytest.param(node({A: [holds(1)]}, USER, gpus=MIG), None, id="a GPU divided by MIG"),
        pytest.param(
            node({}, {}, grant(), states=[NOT_LOADED]), Kind.NOT_ENFORCED, id="not enforced"
        ),
        pytest.param(
            node({}, {}, grant(), states=[replace(NOT_LOADED, state=State.ENFORCED)]), None,
            id="enforced",
        ),
        pytest.param(
            node({}, {}, grant(WHOLE), states=[NOT_LOADED]), None, id="it has the whole GPU"
        ),
        pytest.param(
            node({}, {}, grant(replace(WHOLE, memory_mib=45500)), states=[NOT_LOADED],
                 gpus={A: replace(gpus(A).gpus[0], reserved_mib=568)}),
            None, id="all that the driver leaves of it",
        ),
        pytest.param(
            node({}, {}, grant(WHOLE), states=[NOT_LOADED], memory_scaling=2.0),
            Kind.NOT_ENFORCED, id="all memory, of which twice as much is handed out",
        ),
        pytest.param(
            node({}, {}, grant(replace(WHOLE, memory_mib=2 * 46068)), states=[NOT_LOADED],
                 memory_scaling=2.0),
            None, id="all that is handed out",
        ),
        pytest.param(
            node({}, {}, grant(WHOLE), states=[NOT_LOADED], changed=HALVED), Kind.NOT_ENFORCED,
            id="it had the whole GPU until that was lowered live",
        ),
        pytest.param(
            node({}, {}, grant(replace(WHOLE, core_percent=99)), states=[NOT_LOADED]),
            Kind.NOT_ENFORCED, id="all memory, not all time",
        ),
        pytest.param(
            node({}, {}, grant(replace(WHOLE, memory_mib=46067)), states=[NOT_LOADED]),
            Kind.NOT_ENFORCED, id="all time, not all memory",
        ),
        pytest.param(
            node({}, {}, grant(claim(memory_mib=0, core_percent=0)), states=[NOT_LOADED]), None,
            id="a grant without limits",
        ),
        pytest.param(
            node({}, {}, grant(), states=[NOT_LOADED], gpus=MIG), None, id="not enforced on MIG"
        ),
        pytest.param(
            node({}, {}, grant(container="side"), states=[NOT_LOADED]), None,
            id="its grant is gone",
        ),
    ],
)  # fmt: skip
def test_judgement(seen: Node, kind: Kind | None) -> None:
    allowed = Allowed(frozenset({"Xorg"}), frozenset({"tools"}))
    assert [found.kind for found in judge(seen, allowed)] == ([kind] if kind else [])


def test_a_finding_says_who_and_what_to_do() -> None:
    (found,) = judge(node({A: HALVES}, USER | {71: at()}, grant()), Allowed())
    assert (found.namespace, found.pod, found.container, found.pid) == ("ns", "p", "main", 71)
    for part in ("main", "71", "python3", A, f"{ABOVE} MiB", f"{LIMIT_MIB} MiB", "delete the pod"):
        assert part in found.explained
    (host,) = judge(node({A: [holds(1)]}, HOST), Allowed())
    assert "70 (miner)" in host.explained
    assert "--bypass-allow-programs" in host.explained
    (bare,) = judge(node({}, {}, grant(), states=[NOT_LOADED]), Allowed())
    assert bare.explained == EXPLAINED[Reason.NOT_LOADED]


@pytest.mark.parametrize(
    ("listed", "named", "told"),
    [
        pytest.param(
            [holds(10), holds(ABOVE, 71)], 71, "process 71, miner, which holds most",
            id="the second holds nearly all",
        ),
        pytest.param(
            [holds(ABOVE), holds(10, 71)], 70, "process 70, python3, which holds most",
            id="the first does",
        ),
        pytest.param(
            [holds(None), holds(ABOVE, 71)], 71, "process 71, miner, which holds most",
            id="of the first the driver says nothing",
        ),
        pytest.param(
            [holds(ABOVE), holds(ABOVE, 71)], 70, "process 70, python3, which holds most",
            id="both the same",
        ),
        pytest.param([holds(ABOVE, 71)], 71, "(process 71, miner) uses", id="it is alone"),
    ],
)  # fmt: skip
def test_above_its_grant_the_process_is_named_that_holds_most(
    listed: list[GpuProcess], named: int, told: str
) -> None:
    traced = {70: at(), 71: at(program="miner")}
    (found,) = judge(node({A: listed}, traced, grant()), Allowed())
    assert (found.kind, found.pid) == (Kind.ABOVE_GRANT, named)
    assert found.program == traced[named].program
    assert told in found.explained
    assert set(found.pids) == {one.pid for one in listed}


BARE = replace(NOT_LOADED, pids=(71,))


@pytest.mark.parametrize(
    ("listed", "state", "named"),
    [
        pytest.param({B: [holds(1, 71)]}, BARE, [B], id="on another GPU than was granted"),
        pytest.param(
            {A: [holds(1)], B: [holds(1, 71)]}, BARE, [B], id="beside one with the library"
        ),
        pytest.param({A: [holds(1, 71)], B: [holds(1, 71)]}, BARE, [A, B], id="on both"),
        pytest.param({}, BARE, [A], id="on no list: as granted"),
        pytest.param({B: [holds(1)]}, BARE, [A], id="another of its processes is: as granted"),
        pytest.param({B: [holds(1, 71)]}, NOT_LOADED, [A], id="it is not known which: as granted"),
    ],
)
def test_not_enforced_names_the_gpu_that_the_process_is_on(
    listed: dict[str, list[GpuProcess]], state: ContainerState, named: list[str]
) -> None:
    traced = {70: at(), 71: at()}
    found = judge(node(listed, traced, grant(), states=[state]), Allowed())
    assert [one.gpu for one in found if one.kind is Kind.NOT_ENFORCED] == named


def test_many_processes_are_one_finding_but_each_of_the_host_by_its_program() -> None:
    seen = {70: at(), 71: at(), 80: Whereabouts(5, "a"), 81: Whereabouts(5, "a")}
    seen |= {82: Whereabouts(5, "b")}
    found = judge(node({A: [holds(1, pid) for pid in seen]}, seen), Allowed())
    assert [(one.kind, one.pid) for one in found] == [
        (Kind.HOST_PROCESS, 80), (Kind.HOST_PROCESS, 82), (Kind.NO_GRANT, 70),
    ]  # fmt: skip


def test_what_was_allowed_once_may_be_kept_but_not_taken_again() -> None:
    """A limit that is lowered below what is in use accuses nobody."""
    held = (UID, "main", A)
    more = 3 * LIMIT_MIB
    raised = node({A: [holds(more)]}, USER, grant(), limits={(UID, "main"): {A: more * MIB}})
    lowered = node({A: [holds(more)]}, USER, grant(), allowances=allowances(raised))
    assert judge(lowered, Allowed()) == ()
    freed = node({A: [holds(1)]}, USER, grant(), allowances=allowances(lowered))
    assert allowances(lowered) == {held: more * MIB}
    assert allowances(freed) == {held: LIMIT_MIB * MIB}
    again = node({A: [holds(more)]}, USER, grant(), allowances=allowances(freed))
    assert [found.kind for found in judge(again, Allowed())] == [Kind.ABOVE_GRANT]


def test_who_cannot_be_seen_for_once_keeps_what_was_allowed() -> None:
    held = (UID, "main", A)
    before = {held: 3 * LIMIT_MIB * MIB}
    unseen = node({A: [holds(3 * LIMIT_MIB)]}, {}, grant(), allowances=before)
    assert allowances(unseen) == before
    ended = node({A: []}, {}, grant(), allowances=before)
    assert allowances(ended) == {}


words = st.sampled_from(["", UID, OTHER, "main", "x"])


@given(
    st.dictionaries(
        st.sampled_from([A, B, "else"]),
        st.lists(st.builds(GpuProcess, pid=st.integers(0, 9), used_bytes=st.none() | st.integers(0)), max_size=5),
    ),
    st.dictionaries(st.integers(0, 9), st.builds(Whereabouts, st.integers(), words, words, words, words)),
    st.lists(st.builds(claim, st.sampled_from([A, B]), st.integers(0), st.integers(0, 200)), max_size=3),
)  # fmt: skip
def test_any_picture_gives_findings_once_each(
    processes: dict[str, list[GpuProcess]], traced: dict[int, Whereabouts], claims: list[Claim]
) -> None:
    found = judge(node(processes, traced, grant(*claims), states=[NOT_LOADED]), Allowed())
    keys = [one.key for one in found]
    assert keys == sorted(set(keys))
    assert {one.pid for one in found} <= {0, *traced}


# --- the loop -----------------------------------------------------------------------------------


class FakeUsers:
    def __init__(self) -> None:
        self.now: dict[str, tuple[GpuProcess, ...]] = {}
        self.error: NvmlError | None = None
        self.looks = 0

    def look(self) -> Mapping[str, tuple[GpuProcess, ...]]:
        self.looks += 1
        if self.error:
            raise self.error
        return self.now


class FakePlaces:
    def __init__(self) -> None:
        self.now: dict[int, Whereabouts] = {}

    def trace(self, pids: Collection[int]) -> Mapping[int, Whereabouts]:
        return {pid: where for pid, where in self.now.items() if pid in pids}


class Bed:
    """The loop with fakes around it; one pod, `main` of which has a grant."""

    def __init__(self, *, evicts: bool = False) -> None:
        self.users, self.places = FakeUsers(), FakePlaces()
        self.limits: Mapping[str, int] | None = None
        self.grants = FakeGrantLog()
        self.grants.record(recorded())
        pod = Pod(namespace="ns", name="p", uid=UID, phase="Running", container_ids={"id1": "main"})
        self.pods = Published(PodTable({UID: pod}, synced=True))
        self.states = Published[tuple[ContainerState, ...]](())
        self.largest: dict[tuple[str, str], dict[str, int]] = {}
        self.directories: list[tuple[str, str]] = []
        self.events: list[ClusterEvent] = []
        self.counted: list[str] = []
        self.evicted: list[str] = []
        self.refusals = 0
        self.loop = Detector(
            self.users,
            self.places,
            Books(
                grants=self.grants, pods=self.pods, inventory=Published(gpus(A, B)),
                sharing=Sharing(), limits=lambda *_: self.limits, states=self.states,
                changed=lambda: self.largest, largest_ever=lambda *key: self.largest[key],
                directories=lambda: self.directories,
            ),
            Allowed(),
            post=self.events.append,
            count=self.counted.append,
            evict=self.evict if evicts else None,
        )  # fmt: skip

    def evict(self, pod: Pod) -> None:
        if self.refusals:
            self.refusals -= 1
            raise unavailable()
        self.evicted.append(pod.full_name)

    def see(self, process: GpuProcess, where: Whereabouts, gpu: str = A) -> "Bed":
        self.users.now = {gpu: (process,)}
        self.places.now = {process.pid: where}
        return self

    def found(self) -> list[Kind]:
        return [bypass.kind for bypass in self.loop.found.now()]


class Waiting(Published[tuple[ContainerState, ...]]):
    """States for which the loop waits as long as it wants to, once; notes whether it is late then."""

    def __init__(self, clock_s: list[float], life: Lifeline, stop: Event) -> None:
        super().__init__(())
        self.overdue_s: list[float] = []
        self._clock_s, self._life, self._stop = clock_s, life, stop

    def wait_for_change(self, _seen_version: int, timeout_s: float | None) -> bool:
        self._clock_s[0] += timeout_s or 0.0
        self.overdue_s.append(self._life.overdue_s())
        self._stop.set()
        return False


def test_it_is_not_late_while_it_waits() -> None:
    """For an hour, where nothing is to be looked at more often."""
    clock_s, stop = [0.0], Event()
    life = Lifeline(stop, lambda: clock_s[0])
    states = Waiting(clock_s, life, stop)
    bed = Bed()
    loop = Detector(
        bed.users, bed.places, replace(bed.loop._books, states=states), Allowed(), every_s=3600.0,
        cpu_s=lambda: 0.0,
    )  # fmt: skip
    loop.run(life)
    assert clock_s == [3600.0]
    assert max(states.overdue_s) <= 0


def test_what_is_seen_twice_is_said_once() -> None:
    bed = Bed().see(holds(1), at(), B)
    assert bed.loop.look_once()  # a second look is wanted soon
    assert (bed.found(), bed.events, bed.counted) == ([], [], [])
    assert not bed.loop.look_once()
    assert bed.found() == [Kind.OTHER_GPU]
    bed.loop.look_once()
    (event,) = bed.events
    assert (event.reason, event.pod and event.pod.name) == (EVENT, "p")
    assert bed.counted == [Kind.OTHER_GPU]
    bed.users.now = {}
    bed.loop.look_once()
    assert bed.found() == []
    bed.see(holds(1), at(), B)
    for _ in range(2):
        bed.loop.look_once()
    assert len(bed.events) == len(bed.counted) == 2


@pytest.mark.parametrize(
    "second",
    [
        pytest.param(Whereabouts(6, "python3", UID, "", "main"), id="another process of this pid"),
        pytest.param(Whereabouts(5, "python3"), id="it is in no pod"),
    ],
)
def test_a_pid_that_is_given_away_again_accuses_nobody(second: Whereabouts) -> None:
    bed = Bed().see(holds(1), at(), B)
    bed.loop.look_once()
    bed.see(holds(1), second, B)
    bed.loop.look_once()
    assert bed.found() == []


def test_the_runtimes_id_names_the_container_of_a_static_pod() -> None:
    bed = Bed().see(holds(1), Whereabouts(5, "python3", "another-uid", "id1", ""))
    for _ in range(2):
        bed.loop.look_once()
    assert bed.found() == []


def test_a_process_without_its_mounts_is_counted_with_its_neighbours() -> None:
    bed = Bed()
    bed.users.now = {A: (holds(LIMIT_MIB - 1), holds(LIMIT_MIB - 1, 71))}
    bed.places.now = {
        70: Whereabouts(5, "python3", UID, "of-main", "main"),
        71: Whereabouts(5, "python3", UID, "of-main", ""),
    }
    for _ in range(2):
        bed.loop.look_once()
    assert bed.found() == [Kind.ABOVE_GRANT]


def test_processes_that_take_turns_are_one_finding() -> None:
    """A hog that is started last, with others of lower pids that come and go."""
    bed = Bed()
    hog = holds(1, 99)
    for turn in range(3):
        bed.users.now = {B: (holds(1, 10 + turn), hog)}
        bed.places.now = {10 + turn: at(), 99: at()}
        bed.loop.look_once()
    assert bed.found() == [Kind.OTHER_GPU]


def test_a_driver_that_fails_now_and_then_makes_one_finding_of_one() -> None:
    bed = Bed().see(holds(1), at(), B)
    for turn in range(9):
        bed.users.error = NvmlError("no answer") if turn % 3 == 2 else None
        bed.loop.look_once()
    assert (len(bed.events), bed.counted) == (1, [Kind.OTHER_GPU])


def test_who_was_granted_by_others_is_not_accused() -> None:
    """By HAMi's plugin before us, or by us, and the journal was lost."""
    bed = Bed().see(holds(1), at(OTHER, "main"))
    decided = {"hami.io/vgpu-devices-allocated": f"{A},NVIDIA,8000,30:;"}
    pod = Pod(
        namespace="ns", name="q", uid=OTHER, phase="Running", annotations=decided,
        containers=(Container(name="main", vgpus=1),),
    )  # fmt: skip
    bed.pods.update(lambda table: PodTable({**table.pods, OTHER: pod}, synced=True))
    for _ in range(2):
        bed.loop.look_once()
    assert bed.found() == [Kind.NO_GRANT], "an annotation alone, which its author may write"
    bed.directories = [(OTHER, "main")]
    bed.loop.look_once()
    assert bed.found() == []


def test_the_processes_of_a_pod_that_has_failed_may_end_in_peace() -> None:
    bed = Bed().see(holds(1), at())
    failed = replace(bed.pods.now().pods[UID], phase="Failed")
    bed.pods.update(lambda _: PodTable({UID: failed}, synced=True))
    for _ in range(2):
        bed.loop.look_once()
    assert bed.found() == []


def test_a_change_of_states_is_looked_at_at_once() -> None:
    bed = Bed()
    bed.loop._every_s = 3600.0
    supervisor = Supervisor([bed.loop])
    supervisor.start()
    try:
        eventually(lambda: bed.users.looks > 0)
        bed.states.publish((NOT_LOADED,))
        eventually(lambda: bed.found() == [Kind.NOT_ENFORCED])
    finally:
        supervisor.stop()


@pytest.mark.parametrize(
    ("limit_mib", "found"),
    [
        pytest.param(2 * LIMIT_MIB, [], id="raised"),
        pytest.param(LIMIT_MIB // 2, [Kind.ABOVE_GRANT], id="lowered"),
        pytest.param(None, [Kind.ABOVE_GRANT], id="as granted"),
    ],
)
def test_limits_that_hold_now_count(limit_mib: int | None, found: list[Kind]) -> None:
    bed = Bed().see(holds(ABOVE), at())
    if limit_mib is not None:
        bed.limits = {A: limit_mib * MIB}
    for _ in range(2):
        bed.loop.look_once()
    assert bed.found() == found


def test_limits_that_held_before_the_agent_started_are_asked_for_once() -> None:
    bed = Bed().see(holds(ABOVE), at())
    bed.largest = {(UID, "main"): {A: ABOVE * MIB}}
    bed.loop.look_once()
    bed.largest = {(UID, "main"): {A: 1}}
    bed.loop.look_once()
    bed.see(holds(2 * ABOVE), at())
    bed.loop.look_once()
    assert bed.found() == []
    bed.loop.look_once()
    assert bed.found() == [Kind.ABOVE_GRANT]


def test_a_finding_is_looked_at_again_soon() -> None:
    bed = Bed().see(holds(1), at(OTHER, "x"))
    bed.loop._every_s = 3600.0
    supervisor = Supervisor([bed.loop])
    supervisor.start()
    try:
        eventually(lambda: bed.found() == [Kind.NO_GRANT])
    finally:
        supervisor.stop()


def test_the_loop_remembers_what_was_allowed() -> None:
    bed = Bed().see(holds(ABOVE), at())
    bed.limits = {A: ABOVE * MIB}
    bed.loop.look_once()
    bed.limits = None
    for _ in range(3):
        bed.loop.look_once()
    assert bed.found() == []


def test_who_is_not_enforced_has_its_event_already() -> None:
    bed = Bed()
    bed.states.publish((NOT_LOADED,))
    assert not bed.loop.look_once()
    assert (bed.found(), bed.events, bed.counted) == ([Kind.NOT_ENFORCED], [], [Kind.NOT_ENFORCED])


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    sink = logs._Sink()
    sink.stream = io.StringIO()
    monkeypatch.setattr(logs, "_SINK", sink)
    return sink.stream


def test_the_log_says_begin_and_end(written: io.StringIO) -> None:
    bed = Bed().see(holds(1), Whereabouts(5, "miner"))
    for _ in range(4):
        bed.loop.look_once()
    bed.users.now = {}
    bed.loop.look_once()
    lines = written.getvalue().splitlines()
    assert len(lines) == 2
    assert "70 (miner)" in lines[0]
    assert bed.events[0].pod is None  # about the node


def test_processes_of_nowhere_are_said_after_a_while(written: io.StringIO) -> None:
    bed = Bed()
    bed.users.now = {A: (holds(1),)}
    for _ in range(2):
        bed.loop.look_once()
    assert written.getvalue() == ""
    bed.loop.look_once()
    assert "hostPID: true" in written.getvalue()


def test_a_driver_that_fails_leaves_the_gpu_of_what_is_not_enforced() -> None:
    bed = Bed().see(holds(1, 71), at(), B)
    bed.states.publish((BARE,))
    for _ in range(2):
        bed.loop.look_once()
    assert bed.found() == [Kind.NOT_ENFORCED, Kind.OTHER_GPU]
    before = {bypass.key for bypass in bed.loop.found.now()}
    bed.users.error = NvmlError("no answer")
    bed.loop.look_once()
    assert {bypass.key for bypass in bed.loop.found.now()} == before
    assert bed.counted.count(Kind.NOT_ENFORCED) == 1


def test_a_driver_that_fails_leaves_the_rest(written: io.StringIO) -> None:
    bed = Bed()
    bed.states.publish((NOT_LOADED,))
    bed.users.error = NvmlError("no answer")
    bed.loop.look_once()
    assert bed.found() == [Kind.NOT_ENFORCED]
    assert "no answer" in written.getvalue()


def test_eviction_is_for_those_who_want_it() -> None:
    bed = Bed().see(holds(1), at(), B)
    for _ in range(3):
        bed.loop.look_once()
    assert bed.evicted == []
    bed = Bed(evicts=True).see(holds(1), at(), B)
    bed.loop.look_once()
    assert bed.evicted == []
    for _ in range(EVICT_AGAIN_ROUNDS):
        bed.loop.look_once()
    assert bed.evicted == ["ns/p"]
    assert [event.reason for event in bed.events] == [EVENT, EVICTED]


def test_an_eviction_that_is_refused_is_tried_again() -> None:
    bed = Bed(evicts=True).see(holds(1), at(), B)
    bed.refusals = 1
    for _ in range(EVICT_AGAIN_ROUNDS + 2):
        bed.loop.look_once()
    assert bed.evicted == ["ns/p"]


def test_a_pod_that_is_ending_is_not_evicted() -> None:
    bed = Bed(evicts=True).see(holds(1), at(), B)
    bed.pods.update(
        lambda table: PodTable({UID: replace(table.pods[UID], deleting=True)}, synced=True)
    )
    for _ in range(3):
        bed.loop.look_once()
    assert (bed.found(), bed.evicted) == ([Kind.OTHER_GPU], [])
