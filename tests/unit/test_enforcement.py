"""Judging containers: every state, which pid goes where, and what the loop says of it."""

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent import logs
from agent.domain.enforcement import (
    EXPLAINED,
    MOST_PIDS,
    Granted,
    Process,
    Reason,
    RegionLook,
    Seen,
    State,
    host_pids,
    judge,
)
from agent.domain.executables import Linkage
from agent.domain.grants import Grant, GrantRecord, Mount
from agent.domain.pods import Container, Pod
from agent.domain.proc_text import FileId
from agent.domain.region_slots import HostPid, Slot
from agent.errors import NodeNotReady
from agent.ports import ClusterEvent
from agent.services.enforcement import Enforcement
from agent.services.published import PodTable, Published
from tests.unit.fakes import FakeGrantLog

NAMESPACE = 4026532000
IDLE = Process(
    pid=500, pid_inside=7, pid_namespace=NAMESPACE, start_time=99, library=True, uses_gpu=False
)
USER = replace(IDLE, uses_gpu=True)
BARE = replace(USER, library=False, linkage=Linkage.GLIBC)
SLOT = Slot(index=3, pid=7, host_pid=0, pid_namespace=NAMESPACE, start_time=99)
FOREIGN = RegionLook("it is no regular file")


@pytest.mark.parametrize(
    ("processes", "region", "state", "reason"),
    [
        pytest.param([], RegionLook(), State.IDLE, Reason.IDLE, id="no process"),
        pytest.param([IDLE], RegionLook(), State.IDLE, Reason.IDLE, id="none uses a GPU"),
        pytest.param([USER], RegionLook(), State.ENFORCED, Reason.NONE, id="held"),
        pytest.param([USER, IDLE], RegionLook(), State.ENFORCED, Reason.NONE, id="one is idle"),
        pytest.param(
            [replace(IDLE, library=False)], RegionLook(), State.IDLE, Reason.IDLE,
            id="without library and GPU",
        ),
        pytest.param(
            [USER, replace(BARE, linkage=Linkage.MUSL, settled=False)],
            RegionLook(), State.NOT_ENFORCEABLE, Reason.MUSL, id="one of two is musl's",
        ),
        pytest.param(
            [replace(BARE, linkage=Linkage.STATIC)],
            RegionLook(), State.NOT_ENFORCEABLE, Reason.STATIC, id="static",
        ),
        pytest.param([BARE], RegionLook(), State.NOT_ENFORCEABLE, Reason.NOT_LOADED, id="not loaded"),
        pytest.param(
            [replace(BARE, linkage=Linkage.OTHER)],
            RegionLook(), State.NOT_ENFORCEABLE, Reason.NOT_LOADED, id="another loader",
        ),
        pytest.param(
            [replace(BARE, settled=False)], RegionLook(), State.IDLE, Reason.IDLE,
            id="one that is being started",
        ),
        pytest.param(
            [BARE, replace(BARE, linkage=Linkage.STATIC), replace(BARE, linkage=Linkage.MUSL)],
            RegionLook(), State.NOT_ENFORCEABLE, Reason.MUSL, id="the reason is always the same",
        ),
        pytest.param([USER], FOREIGN, State.NOT_ENFORCEABLE, Reason.FOREIGN_REGION, id="no region"),
        pytest.param([IDLE], FOREIGN, State.IDLE, Reason.IDLE, id="no region and no user"),
        pytest.param(
            [USER, replace(IDLE, readable=False)],
            RegionLook(), State.UNKNOWN, Reason.UNREADABLE, id="one cannot be looked into",
        ),
        pytest.param(
            [BARE, replace(IDLE, readable=False)],
            RegionLook(), State.NOT_ENFORCEABLE, Reason.NOT_LOADED, id="another says enough",
        ),
    ],
)  # fmt: skip
def test_states(processes: list[Process], region: RegionLook, state: State, reason: Reason) -> None:
    verdict = judge(processes, region, seeing=True, switched_off=False)
    assert (verdict.state, verdict.reason) == (state, reason)
    assert bool(verdict.explained) == (state is State.NOT_ENFORCEABLE)
    assert verdict.explained.startswith(EXPLAINED.get(reason, ""))
    assert region.problem in verdict.explained or state is not State.NOT_ENFORCEABLE
    order = judge(processes[::-1], region, seeing=True, switched_off=False)
    assert (order.state, order.reason) == (state, reason)


OWN, OTHER = FileId(8, 1, 42), FileId(8, 1, 43)
HELD = replace(USER, limits=frozenset({OWN}))
MISLED = replace(USER, pid=501, limits=frozenset({OTHER}))


@pytest.mark.parametrize(
    ("processes", "given", "reason", "pids"),
    [
        pytest.param([HELD, USER], {OWN}, Reason.NONE, (), id="held, and one that has not started CUDA"),
        pytest.param([HELD, MISLED], {OWN}, Reason.FOREIGN_LIMITS, (501,), id="another file"),
        pytest.param(
            [replace(HELD, limits=frozenset({OWN, OTHER}))], {OWN}, Reason.FOREIGN_LIMITS, (500,),
            id="another file besides",
        ),
        pytest.param([HELD, MISLED], {OWN, OTHER}, Reason.NONE, (), id="one given before, one later"),
        pytest.param([MISLED], set(), Reason.NONE, (), id="it is not known which was given"),
        pytest.param([replace(MISLED, uses_gpu=False)], {OWN}, Reason.IDLE, (), id="no GPU is used"),
        pytest.param([MISLED, BARE], {OWN}, Reason.NOT_LOADED, (500,), id="one has no library at all"),
    ],
)  # fmt: skip
def test_whose_limits_they_go_by(
    processes: list[Process], given: set[FileId], reason: Reason, pids: tuple[int, ...]
) -> None:
    found = judge(processes, RegionLook(), seeing=True, switched_off=False, limits=given)
    assert (found.reason, found.pids) == (reason, pids)
    assert found.explained == EXPLAINED.get(reason, "")


@pytest.mark.parametrize(
    ("processes", "region", "pids"),
    [
        pytest.param([USER, replace(BARE, pid=501)], RegionLook(), (501,), id="one without it"),
        pytest.param(
            [replace(BARE, pid=502, linkage=Linkage.MUSL), replace(BARE, pid=501)],
            RegionLook(), (501, 502), id="for two reasons",
        ),
        pytest.param([USER, replace(IDLE, pid=501)], FOREIGN, (500,), id="no region to count in"),
        pytest.param([USER], RegionLook(), (), id="held"),
        pytest.param(
            [replace(BARE, pid=pid) for pid in range(500, 500 + 2 * MOST_PIDS)],
            RegionLook(), tuple(range(500, 500 + MOST_PIDS)), id="very many",
        ),
    ],
)  # fmt: skip
def test_which_processes_it_is_about(
    processes: list[Process], region: RegionLook, pids: tuple[int, ...]
) -> None:
    assert judge(processes, region, seeing=True, switched_off=False).pids == pids


@pytest.mark.parametrize(
    ("reason", "path"),
    [
        pytest.param(Reason.NOT_LOADED, "/etc/ld.so.preload", id="the preload file"),
        pytest.param(Reason.FOREIGN_LIMITS, "/etc/vgpu.limits", id="the limits file"),
    ],
)
def test_a_volume_over_our_file_is_named_as_a_cause(reason: Reason, path: str) -> None:
    assert path in EXPLAINED[reason]
    assert "volume of the pod" in EXPLAINED[reason]


def test_nothing_is_said_of_what_cannot_be_seen() -> None:
    verdict = judge([], RegionLook(), seeing=False, switched_off=False)
    assert (verdict.state, verdict.reason) == (State.UNKNOWN, Reason.UNSEEN)


def test_limits_that_nobody_wants_are_not_missed() -> None:
    verdict = judge([BARE], RegionLook(slots=(SLOT,)), seeing=True, switched_off=True)
    assert (verdict.state, verdict.told) == (State.OFF, (HostPid(SLOT, 500),))


@pytest.mark.parametrize(
    ("slot", "processes", "told"),
    [
        pytest.param(SLOT, [USER], 500, id="not told yet"),
        pytest.param(replace(SLOT, host_pid=12), [USER], 500, id="told wrongly"),
        pytest.param(replace(SLOT, host_pid=500), [USER], None, id="told"),
        pytest.param(replace(SLOT, pid=8), [USER], None, id="of the dead"),
        pytest.param(replace(SLOT, pid=8, host_pid=44), [USER], None, id="of the dead, told once"),
        pytest.param(replace(SLOT, start_time=98), [USER], None, id="its pid was given away again"),
        pytest.param(replace(SLOT, pid_namespace=1), [USER], None, id="another namespace"),
        pytest.param(
            SLOT, [USER, replace(USER, pid=501, pid_namespace=1)], 500, id="the same pid in two"
        ),
        pytest.param(
            replace(SLOT, pid_namespace=0, start_time=0), [USER], 500, id="another library's slot"
        ),
        pytest.param(
            replace(SLOT, pid_namespace=0, start_time=0),
            [USER, replace(USER, pid=501, pid_namespace=1)],
            None,
            id="another library's, and two may have it",
        ),
        pytest.param(SLOT, [replace(USER, pid_inside=0)], None, id="a pid that is not known"),
        pytest.param(SLOT, [], None, id="nobody there"),
    ],
)
def test_which_pid_is_told(slot: Slot, processes: list[Process], told: int | None) -> None:
    wanted = () if told is None else (HostPid(slot, told),)
    assert host_pids(processes, [slot]) == wanted


def test_nothing_is_written_into_a_foreign_file() -> None:
    region = RegionLook("it is no usage region", (SLOT,))
    assert judge([USER], region, seeing=True, switched_off=False).told == ()


NUMBERS = st.integers(0, 3)
PROCESSES = st.builds(
    Process, pid=st.integers(1, 9), pid_inside=NUMBERS, pid_namespace=NUMBERS, start_time=NUMBERS,
    library=st.booleans(), uses_gpu=st.booleans(), linkage=st.none() | st.sampled_from(Linkage),
    settled=st.booleans(), readable=st.booleans(),
)  # fmt: skip
SLOTS = st.builds(
    Slot, index=NUMBERS, pid=NUMBERS, host_pid=NUMBERS, pid_namespace=NUMBERS, start_time=NUMBERS
)


@given(
    st.lists(PROCESSES, max_size=4, unique_by=lambda process: process.pid),
    st.lists(SLOTS, max_size=4),
    st.sampled_from(["", "it is no usage region"]),
)
def test_a_told_pid_is_one_of_the_containers_own(
    processes: list[Process], slots: list[Slot], problem: str
) -> None:
    verdict = judge(processes, RegionLook(problem, tuple(slots)), seeing=True, switched_off=False)
    for told in verdict.told:
        (process,) = [one for one in processes if one.pid == told.host_pid]
        assert process.pid_inside == told.slot.pid
        assert told.slot.pid_namespace in (0, process.pid_namespace)
        assert told.slot.start_time in (0, process.start_time)
    escaped = any(p.uses_gpu and not p.library and p.settled for p in processes)
    assert not (escaped and verdict.state in (State.ENFORCED, State.IDLE, State.UNKNOWN))


# --- the loop ------------------------------------------------------------------------------------


class FakeProcesses:
    def __init__(self) -> None:
        self.asked: list[Mapping[str, Granted]] = []
        self.forgotten = 0
        self.found: tuple[Process, ...] = ()
        self.seeing = True
        self.error: OSError | None = None

    def look(self, granted: Mapping[str, Granted]) -> Seen:
        self.asked.append(granted)
        if self.error:
            raise self.error
        return Seen(self.seeing, {(uid, "main"): self.found for uid in granted})

    def forget(self) -> None:
        self.forgotten += 1


class FakeRegions:
    def __init__(self) -> None:
        self.now = RegionLook()
        self.told: list[tuple[str, str, str, tuple[HostPid, ...]]] = []
        self.looks = 0
        self.error: NodeNotReady | None = None

    def look(self, *_: str) -> RegionLook:
        self.looks += 1
        if self.error:
            raise self.error
        return self.now

    def tell(self, pod_uid: str, container: str, name: str, told: Sequence[HostPid]) -> int:
        if self.error:
            raise self.error
        self.told.append((pod_uid, container, name, tuple(told)))
        return len(told)


RECORD = GrantRecord(
    pod_uid="u1",
    namespace="ns",
    pod_name="p",
    container="main",
    device_ids=("GPU-a-0",),
    claims=(),
    grant=Grant(
        envs={"CUDA_DEVICE_MEMORY_SHARED_CACHE": "/usr/local/vgpu/x.cache"},
        mounts=(Mount("/etc/ld.so.preload", "/host/ld.so.preload"),),
    ),
    granted_at_s=1.0,
)
POD = Pod(
    namespace="ns", name="p", uid="u1", phase="Running",
    containers=(Container(name="main", vgpus=1),), container_ids={"id1": "main"},
)  # fmt: skip


class Bed:
    """The loop with fakes around it."""

    def __init__(
        self,
        record: GrantRecord | None = RECORD,
        pods: Sequence[Pod] = (POD,),
        has_whole_gpus: Callable[[GrantRecord], bool | None] = lambda _: False,
        limits_files: Callable[[str, str], frozenset[FileId]] = lambda _uid, _container: (
            frozenset()
        ),
    ) -> None:
        self.grants = FakeGrantLog()
        if record:
            self.grants.record(record)
        self.pods = Published(PodTable({pod.uid: pod for pod in pods}, synced=True))
        self.processes, self.regions = FakeProcesses(), FakeRegions()
        self.events: list[ClusterEvent] = []
        self.loop = Enforcement(
            self.grants, self.pods, self.processes, self.regions, post=self.events.append,
            has_whole_gpus=has_whole_gpus, limits_files=limits_files,
        )  # fmt: skip

    def look(self, *found: Process) -> tuple[State, Reason]:
        self.processes.found = found
        (state,) = self.loop.look_once()
        assert self.loop.states.now() == (state,)
        assert (state.namespace, state.pod, state.container) == ("ns", "p", "main")
        assert bool(state.pids) == (state.state is State.NOT_ENFORCEABLE)
        return state.state, state.reason


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    sink = logs._Sink()
    sink.stream = io.StringIO()
    monkeypatch.setattr(logs, "_SINK", sink)
    return sink.stream


def test_without_a_grant_nothing_is_looked_at() -> None:
    bed = Bed(record=None)
    assert bed.loop.look_once() == ()
    assert (bed.processes.asked, bed.processes.forgotten, bed.regions.looks) == ([], 1, 0)


@pytest.mark.parametrize(
    ("pods", "synced", "asked"),
    [
        pytest.param([POD], True, True, id="a pod that runs"),
        pytest.param([], True, False, id="a pod that is gone"),
        pytest.param([replace(POD, phase="Succeeded")], True, False, id="a pod that has finished"),
        pytest.param([], False, True, id="before the pods are known"),
    ],
)
def test_only_pods_that_may_have_processes_are_looked_for(
    pods: list[Pod], synced: bool, asked: bool
) -> None:
    bed = Bed(pods=pods)
    bed.pods.update(lambda table: PodTable(table.pods, synced=synced))
    bed.loop.look_once()
    ids = {"id1": "main"} if pods else {}
    assert bed.processes.asked == ([{"u1": Granted(frozenset({"main"}), ids)}] if asked else [])


def test_what_was_seen_is_there_for_others_and_whom_it_is_about() -> None:
    bed = Bed()
    bed.loop = Enforcement(
        bed.grants, bed.pods, bed.processes, bed.regions, boot_s=lambda: 12.345
    )  # fmt: skip
    bed.look(USER)
    seen = bed.loop.seen.now()
    assert (seen.seeing, seen.began_at_ticks) == (True, 1234)
    assert seen.processes == {("u1", "main"): (USER,)}
    assert seen.looked_for == {("u1", "main")}
    bed.processes.error = OSError("no /proc")
    bed.loop.look_once()
    assert not bed.loop.seen.now().seeing
    bed.processes.error = None
    bed.look(USER)
    bed.pods.publish(PodTable(synced=True))
    bed.loop.look_once()
    assert (bed.loop.seen.now().seeing, bed.loop.seen.now().looked_for) == (False, frozenset())


LIMITED = replace(
    RECORD, grant=replace(
        RECORD.grant, mounts=(*RECORD.grant.mounts, Mount("/etc/vgpu.limits", "/host/limits/u1_main")),
    ),
)  # fmt: skip


def test_a_limits_file_that_was_exchanged_is_still_the_container_s_own() -> None:
    """Whoever had it mounted goes on with it."""
    now: list[frozenset[FileId] | NodeNotReady] = [frozenset({OWN})]

    def files(uid: str, container: str) -> frozenset[FileId]:
        assert (uid, container) == ("u1", "main")
        if isinstance(now[0], NodeNotReady):
            raise now[0]
        return now[0]

    bed = Bed(LIMITED, limits_files=files)
    assert bed.look(HELD) == (State.ENFORCED, Reason.NONE)
    for now[0] in (frozenset({OTHER}), frozenset[FileId](), NodeNotReady("no such disk")):
        assert bed.look(HELD, MISLED) == (State.ENFORCED, Reason.NONE)
    assert bed.look(replace(HELD, limits=frozenset({replace(OWN, inode=44)}))) == (
        State.NOT_ENFORCEABLE, Reason.FOREIGN_LIMITS,
    )  # fmt: skip
    (event,) = bed.events
    assert event.message == f"container main: {EXPLAINED[Reason.FOREIGN_LIMITS]}"


def test_an_agent_that_starts_finds_what_was_exchanged_before() -> None:
    bed = Bed(LIMITED, limits_files=lambda *_: frozenset({OTHER, OWN}))
    assert bed.look(HELD, MISLED) == (State.ENFORCED, Reason.NONE)


@pytest.mark.parametrize("whole", [True, False])
def test_another_limits_file_is_of_no_matter_to_who_has_the_whole_gpu(whole: bool) -> None:
    bed = Bed(LIMITED, has_whole_gpus=lambda _: whole, limits_files=lambda *_: frozenset({OWN}))
    reason = Reason.WHOLE_GPU if whole else Reason.FOREIGN_LIMITS
    assert bed.look(MISLED)[1] is reason


def test_a_container_without_a_limits_file_is_not_asked_for_one() -> None:
    assert Bed(limits_files=lambda *_: frozenset({OWN})).look(MISLED) == (
        State.ENFORCED,
        Reason.NONE,
    )


@pytest.mark.parametrize(
    ("process", "region", "whole", "state", "reason"),
    [
        pytest.param(BARE, RegionLook(), True, State.UNLIMITED, Reason.WHOLE_GPU, id="not loaded"),
        pytest.param(
            replace(BARE, linkage=Linkage.MUSL), RegionLook(), True,
            State.UNLIMITED, Reason.WHOLE_GPU, id="musl",
        ),
        pytest.param(BARE, RegionLook(), False, State.NOT_ENFORCEABLE, Reason.NOT_LOADED, id="a part"),
        pytest.param(BARE, RegionLook(), None, State.UNKNOWN, Reason.GPUS_UNKNOWN, id="not known"),
        pytest.param(USER, RegionLook(), None, State.ENFORCED, Reason.NONE, id="counted, not known"),
        pytest.param(USER, RegionLook(), True, State.ENFORCED, Reason.NONE, id="with the library"),
        pytest.param(
            USER, FOREIGN, True, State.NOT_ENFORCEABLE, Reason.FOREIGN_REGION,
            id="CUDA does not start there, whatever it has",
        ),
    ],
)  # fmt: skip
def test_who_has_a_whole_gpu_gets_past_no_limit(
    process: Process, region: RegionLook, whole: bool | None, state: State, reason: Reason
) -> None:
    bed = Bed(has_whole_gpus=lambda _: whole)
    bed.regions.now = region
    assert bed.look(process) == (state, reason)
    assert bool(bed.events) == (state is State.NOT_ENFORCEABLE)


def test_of_whom_that_is_not_known_it_is_told(written: io.StringIO) -> None:
    def unreadable(_: GrantRecord) -> bool:
        raise NodeNotReady("the disk does not answer")

    assert Bed(has_whole_gpus=unreadable).look(BARE) == (State.NOT_ENFORCEABLE, Reason.NOT_LOADED)
    assert "the disk does not answer" in written.getvalue()


DIRECTORY = (Mount("/usr/local/vgpu", "/host/vgpu/containers/u1_main", read_only=False),)
REPLICA = replace(RECORD, pod_uid="nvidia-0123456789abcdef", owner_uid="u1")
OTHER_REPLICA = replace(REPLICA, pod_uid="nvidia-fedcba9876543210")
SLICE = replace(REPLICA, pod_uid="slices-0123456789abcdef")


@pytest.mark.parametrize(
    ("records", "ids", "known"),
    [
        pytest.param([RECORD], {}, [], id="MIG devices, and no id yet"),
        pytest.param([RECORD], {"id2": "side"}, [], id="MIG devices, and another container's id"),
        pytest.param([RECORD], {"id1": "main"}, [RECORD], id="by its id"),
        pytest.param(
            [replace(RECORD, grant=Grant(mounts=DIRECTORY))], {}, [RECORD], id="by its directory"
        ),
        pytest.param([REPLICA], {}, [REPLICA], id="by its pod, which has no other grant"),
        pytest.param([REPLICA, OTHER_REPLICA], {}, [], id="two grants of a pod"),
        pytest.param([replace(REPLICA, owner_uid="")], {}, [], id="a grant of nobody knows whom"),
        pytest.param([SLICE], {}, [], id="a slice without its directory"),
    ],
)
def test_of_whom_it_can_be_said_that_no_process_is_there(
    records: list[GrantRecord], ids: dict[str, str], known: list[GrantRecord]
) -> None:
    """The memory that the driver counts of others is not 0, but not known."""
    pods = [replace(POD, uid=record.pod_uid, container_ids=ids) for record in records]
    bed = Bed(record=None, pods=pods)
    for record in records:
        bed.grants.record(record)
    bed.loop.look_once()
    assert bed.loop.seen.now().looked_for == {(one.pod_uid, one.container) for one in known}


def test_a_pid_is_written_where_the_grant_says() -> None:
    bed = Bed()
    bed.regions.now = RegionLook(slots=(SLOT,))
    assert bed.look(USER) == (State.ENFORCED, Reason.NONE)
    assert bed.regions.told == [("u1", "main", "x.cache", (HostPid(SLOT, 500),))]


def test_a_region_is_not_opened_for_who_cannot_be_in_it() -> None:
    bed = Bed()
    bed.look(replace(IDLE, library=False))
    assert bed.regions.looks == 0


def test_each_reason_is_one_event_and_the_pod_is_named() -> None:
    bed = Bed()
    musl = replace(BARE, linkage=Linkage.MUSL)
    for found in ((musl,), (), (musl,), (BARE,), (musl,), (USER,)):
        bed.look(*found)
    assert [(event.reason, event.pod) for event in bed.events] == [
        ("VgpuLimitsNotEnforced", POD)
    ] * 2
    assert [event.message for event in bed.events] == [
        f"container main: {EXPLAINED[Reason.MUSL]}",
        f"container main: {EXPLAINED[Reason.NOT_LOADED]}",
    ]


def test_an_event_waits_until_the_pod_is_known() -> None:
    bed = Bed(pods=[])
    bed.pods.publish(PodTable(synced=False))
    bed.look(BARE)
    assert not bed.events
    bed.pods.publish(PodTable({"u1": POD}, synced=True))
    bed.look(BARE)
    assert len(bed.events) == 1


def test_a_pod_that_switched_its_limits_off_is_left_in_peace() -> None:
    bed = Bed(record=replace(RECORD, grant=replace(RECORD.grant, mounts=())))
    assert bed.look(BARE) == (State.OFF, Reason.OFF)
    assert not bed.events


@pytest.mark.parametrize("error", [OSError("no /proc"), PermissionError("hidden")])
def test_no_proc_at_all_is_unknown_and_no_crash(error: OSError) -> None:
    bed = Bed()
    bed.processes.error = error
    assert bed.look() == (State.UNKNOWN, Reason.UNSEEN)


def test_directories_that_are_not_ours_are_no_crash() -> None:
    bed = Bed()
    bed.regions.now = RegionLook(slots=(SLOT,))
    bed.look(USER)
    bed.regions.error = NodeNotReady("the directory belongs to somebody else: remove it")
    assert bed.look(USER) == (State.ENFORCED, Reason.NONE)


def test_what_was_said_of_a_pod_goes_with_it() -> None:
    bed = Bed()
    bed.look(BARE)
    bed.pods.publish(PodTable(synced=True))
    assert bed.loop.look_once() == ()
    assert bed.loop.states.now() == ()
    bed.pods.publish(PodTable({"u1": POD}, synced=True))
    bed.look(BARE)
    assert len(bed.events) == 2, "a pod of that uid is told anew"


def test_one_pod_goes_and_another_stays() -> None:
    bed = Bed(pods=[POD, replace(POD, uid="u2", name="q")])
    bed.grants.record(replace(RECORD, pod_uid="u2", pod_name="q"))
    bed.processes.found = (BARE,)
    assert len(bed.loop.look_once()) == 2
    both = bed.pods.now()
    bed.pods.publish(both.without("u1"))
    assert [state.pod for state in bed.loop.look_once()] == ["q"]
    bed.pods.publish(both)
    bed.loop.look_once()
    assert [event.pod.name for event in bed.events if event.pod] == ["p", "q", "p"]


def test_a_pod_that_comes_again_under_its_name_is_told_anew(written: io.StringIO) -> None:
    """As a StatefulSet's does, within a round."""
    bed = Bed()
    bed.look(BARE)
    again = replace(POD, uid="u2")
    bed.grants.record(replace(RECORD, pod_uid="u2"))
    bed.pods.publish(PodTable({"u2": again}, synced=True))
    bed.look(BARE)
    assert [event.pod for event in bed.events] == [POD, again]
    assert written.getvalue().count("limits_not_enforced") == 2


class OneTurn:
    """A lifeline that ends after one turn, and what was promised on it."""

    def __init__(self) -> None:
        self.stopping = False
        self.paused_s: list[float] = []
        self.pulses_s: list[float] = []

    def pulse(self, within_s: float) -> None:
        self.pulses_s.append(within_s)

    def pause(self, seconds: float) -> bool:
        self.paused_s.append(seconds)
        self.stopping = True
        return False


@pytest.mark.parametrize(
    ("took_s", "paused_s"),
    [
        pytest.param(0.1, 5.0, id="a quick round"),
        pytest.param(3.0, 60.0, id="very many processes: it rests for longer"),
    ],
)
def test_a_long_round_is_followed_by_a_long_rest(took_s: float, paused_s: float) -> None:
    bed, life = Bed(), OneTurn()
    times = iter([100.0, 100.0 + took_s])
    bed.loop._cpu_s = lambda: next(times)
    bed.loop.run(life)  # type: ignore[arg-type]
    assert life.paused_s == pytest.approx([paused_s])
    assert life.pulses_s == [600.0], "a disk that hangs is no reason to be restarted soon"


@pytest.mark.parametrize(
    ("phase", "looks_at_s", "said"),
    [
        pytest.param("Pending", (0, 10, 20), 0, id="nothing runs yet"),
        pytest.param("Running", (0, 10, 20), 1, id="something runs unseen"),
        pytest.param("Running", (0, 5, 9.9), 0, id="as after a boot: kubelet's books are behind"),
    ],
)
def test_who_cannot_see_says_so_once_there_is_something(
    written: io.StringIO, phase: str, looks_at_s: Sequence[float], said: int
) -> None:
    bed = Bed(pods=[replace(POD, phase=phase)])
    bed.processes.seeing = False
    for now_s in looks_at_s:
        bed.loop._boot_s = lambda now_s=now_s: 1000.0 + now_s
        assert bed.look() == (State.UNKNOWN, Reason.UNSEEN)
    assert written.getvalue().count("hostPID: true") == said


def test_how_long_nothing_is_seen_begins_anew(written: io.StringIO) -> None:
    bed = Bed()
    for now_s, seeing in ((0, False), (9, True), (11, False), (20, False)):
        bed.loop._boot_s = lambda now_s=now_s: 1000.0 + now_s
        bed.processes.seeing = seeing
        bed.look()
    assert "hostPID: true" not in written.getvalue()


def test_each_state_is_logged_once(written: io.StringIO) -> None:
    bed = Bed()
    for found in ((USER,), (USER,), (), (USER,), (BARE,), (BARE,), (USER,)):
        bed.look(*found)
    lines = [line.split()[2] for line in written.getvalue().splitlines()]
    assert lines == ["limits_enforced", "limits_not_enforced", "recovered"]


def test_who_may_not_look_says_so_once(written: io.StringIO) -> None:
    bed = Bed()
    for _ in range(3):
        assert bed.look(replace(IDLE, readable=False)) == (State.UNKNOWN, Reason.UNREADABLE)
    bed.look(IDLE)
    assert written.getvalue().count("SYS_PTRACE") == 1
    assert "recovered" in written.getvalue()
