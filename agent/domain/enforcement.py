"""Are a container's limits kept? And which pid is to be told to whom.

The hook keeps limits from inside a process, so a process that uses a GPU without it has none. This
judges what was seen of a container's processes and of its usage region; it touches nothing.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType

from agent.domain.executables import Linkage
from agent.domain.proc_text import FileId, Place
from agent.domain.region_slots import HostPid, Slot


class State(StrEnum):
    """What is to be said of a container."""

    ENFORCED = "enforced"
    IDLE = "idle"  # no process uses a GPU
    NOT_ENFORCEABLE = "not enforceable"
    UNLIMITED = "unlimited"  # one has no library, and all of its GPUs are the container's anyway
    OFF = "off"  # its author switched the limits off
    UNKNOWN = "unknown"


class Reason(StrEnum):
    """Why; a label of the metric, so there are few."""

    NONE = ""
    IDLE = "idle"
    MUSL = "musl"
    STATIC = "static"
    NOT_LOADED = "library not loaded"
    FOREIGN_LIMITS = "foreign limits"
    FOREIGN_REGION = "foreign region"
    WHOLE_GPU = "whole GPU"
    OFF = "off"
    UNSEEN = "processes not seen"
    UNREADABLE = "processes not readable"
    GPUS_UNKNOWN = "GPUs not known"


EXPLAINED: Mapping[Reason, str] = MappingProxyType({
    Reason.MUSL: "a process uses a GPU that musl's loader started, which puts no library into it, "
    "so no limit holds for it; use an image with glibc instead (not Alpine)",
    Reason.STATIC: "a process uses a GPU that is linked statically, so no library can be put into "
    "it and no limit holds for it; link it dynamically, against glibc",
    Reason.NOT_LOADED: "a process uses a GPU without libvgpu.so, so no limit holds for it: "
    "/etc/ld.so.preload was taken away, a volume of the pod lies over it, its root was changed, or "
    "its loader is not glibc's; start it without these, and the container without privileges",
    Reason.FOREIGN_LIMITS: "a process goes by another limits file than the agent's, so what it was "
    "granted does not hold: something is mounted over /etc/vgpu.limits, by a volume of the pod or "
    "by the process in a mount namespace of its own; take that out of the pod",
    Reason.FOREIGN_REGION: "the file in which its use is counted is not usable, so it is not known "
    "what it uses, and CUDA does not start there; delete the pod, so that it gets a new one",
})  # fmt: skip
MOST_PIDS = 64  # of a container that are told
BY_WEIGHT = (Reason.MUSL, Reason.STATIC, Reason.NOT_LOADED)
PAST_LIMITS = (*BY_WEIGHT, Reason.FOREIGN_LIMITS)  # of no matter to who has whole GPUs


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """A process of a container, as the node sees it."""

    pid: int
    pid_inside: int  # as it sees itself; 0: not known
    pid_namespace: int  # inode; 0: not known
    start_time: int  # clock ticks from boot
    library: bool  # the hook is loaded
    uses_gpu: bool  # has the CUDA driver loaded or a GPU's device file open
    linkage: Linkage | None = None  # asked only of those that use a GPU without the hook
    settled: bool = True  # was the same program when it was looked at before
    readable: bool = True  # False: the agent may not look into it
    limits: frozenset[FileId] = frozenset()  # the limits files that it goes by


@dataclass(frozen=True, slots=True)
class Granted:
    """A pod whose containers' processes are looked for."""

    containers: frozenset[str]  # those with a grant
    container_ids: Mapping[str, str]  # the runtime's id -> container's name, as far as known
    owner_uid: str = ""  # the pod's own uid, where the grant is known by a name of its own


@dataclass(frozen=True, slots=True)
class Seen:
    """Processes by (pod uid, container). `seeing`: those of pods can be seen here at all."""

    seeing: bool
    processes: Mapping[tuple[str, str], tuple[Process, ...]]
    began_at_ticks: int = 0  # from boot, as in Process.start_time; who was started later is missing
    looked_for: frozenset[tuple[str, str]] = frozenset()  # whose processes would be known as theirs
    places: Mapping[tuple[str, str], frozenset[Place]] = field(default_factory=dict)  # cgroups


@dataclass(frozen=True, slots=True)
class RegionLook:
    """What was found where a container's use is counted."""

    problem: str = ""  # why that is no usage region; empty: it is one, or there is none yet
    slots: tuple[Slot, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What is to be said, and done, about a container."""

    state: State
    reason: Reason = Reason.NONE
    explained: str = ""  # a sentence with what to do
    pid: int = 0  # of the process that `explained` is about
    pids: tuple[int, ...] = ()  # of all that are not held to the limits, MOST_PIDS at most
    told: tuple[HostPid, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerState:
    """The same for whoever only reads."""

    namespace: str
    pod: str
    container: str
    state: State
    reason: Reason
    pids: tuple[int, ...] = ()  # as in Verdict


def judge(
    processes: Sequence[Process],
    region: RegionLook,
    *,
    seeing: bool,
    switched_off: bool,
    limits: Collection[FileId] = (),
) -> Verdict:
    """Say whether a container's limits are kept.

    `seeing`: the agent can see processes of pods at all. `switched_off`: nobody wants the limits
    kept, so only pids are told. `limits`: the limits files that the container was given, by and
    by; none: it has none, or it is not known which.
    """
    told = () if region.problem else host_pids(processes, region.slots)
    if switched_off:
        return Verdict(state=State.OFF, reason=Reason.OFF, told=told)
    if not seeing:
        return Verdict(state=State.UNKNOWN, reason=Reason.UNSEEN)
    users = [process for process in processes if process.uses_gpu and process.library]
    if escaped := _escaped(processes) or _misled(users, limits) or _uncounted(users, region):
        reason, explained, pid, pids = escaped
        return Verdict(
            state=State.NOT_ENFORCEABLE,
            reason=reason,
            explained=explained,
            pid=pid,
            pids=tuple(sorted(pids)[:MOST_PIDS]),
            told=told,
        )
    if not all(process.readable for process in processes):
        return Verdict(state=State.UNKNOWN, reason=Reason.UNREADABLE, told=told)
    if users:
        return Verdict(state=State.ENFORCED, told=told)
    return Verdict(state=State.IDLE, reason=Reason.IDLE, told=told)


def without_library(verdict: Verdict, has_whole_gpus: bool | None) -> Verdict:
    """The same, by what the container has: who has all of its GPUs gets past no limit.

    None: that is not known, so it is neither accused nor said to be in order.
    """
    if verdict.reason not in PAST_LIMITS or has_whole_gpus is False:
        return verdict
    if has_whole_gpus is None:
        return Verdict(state=State.UNKNOWN, reason=Reason.GPUS_UNKNOWN, told=verdict.told)
    return Verdict(state=State.UNLIMITED, reason=Reason.WHOLE_GPU, told=verdict.told)


# Why, in a sentence, the pid of the process, and those of all that have got away.
_Finding = tuple[Reason, str, int, Sequence[int]]


def _misled(users: Sequence[Process], limits: Collection[FileId]) -> _Finding | None:
    """Whether some of these go by limits that are not the agent's.

    Nothing in a container can write the agent's file, and anybody can write another one. One that
    goes by no file is not found: most have not come to reading it.
    """
    if not limits:
        return None
    pids = [
        process.pid
        for process in users
        if any(not any(file.stands_for(own) for own in limits) for file in process.limits)
    ]
    return (
        (Reason.FOREIGN_LIMITS, EXPLAINED[Reason.FOREIGN_LIMITS], pids[0], pids) if pids else None
    )


def _uncounted(users: Sequence[Process], region: RegionLook) -> _Finding | None:
    """Whether there is no region in which these processes could be counted."""
    if not users or not region.problem:
        return None
    explained = f"{EXPLAINED[Reason.FOREIGN_REGION]} ({region.problem})"
    pids = [process.pid for process in users]
    return Reason.FOREIGN_REGION, explained, pids[0], pids


def _escaped(processes: Iterable[Process]) -> _Finding | None:
    """The worst reason why a process is not limited, and that process."""
    found: dict[Reason, int] = {}
    pids = []
    for process in processes:
        if process.uses_gpu and not process.library and (reason := _reason(process)):
            found.setdefault(reason, process.pid)
            pids.append(process.pid)
    weightiest = next((reason for reason in BY_WEIGHT if reason in found), None)
    return (weightiest, EXPLAINED[weightiest], found[weightiest], pids) if weightiest else None


def _reason(process: Process) -> Reason:
    if process.linkage is Linkage.MUSL:
        return Reason.MUSL
    if process.linkage is Linkage.STATIC:
        return Reason.STATIC
    # One that is being started may have inherited a device file and not be through its loader yet.
    return Reason.NOT_LOADED if process.settled else Reason.NONE


def host_pids(processes: Sequence[Process], slots: Iterable[Slot]) -> tuple[HostPid, ...]:
    """What is to be written: each living process's pid where its slot says something else.

    A slot whose process is not among these is left alone, and so is one that two may have.
    """
    by_pid: dict[int, list[Process]] = {}
    for process in processes:
        by_pid.setdefault(process.pid_inside, []).append(process)
    found = []
    for slot in slots:
        owners = [process for process in by_pid.get(slot.pid, ()) if _owns(process, slot)]
        if len(owners) == 1 and owners[0].pid != slot.host_pid:
            found.append(HostPid(slot, owners[0].pid))
    return tuple(found)


def _owns(process: Process, slot: Slot) -> bool:
    """Another library says neither namespace nor start time; ours always says both."""
    return slot.pid_namespace in (0, process.pid_namespace) and slot.start_time in (
        0,
        process.start_time,
    )
