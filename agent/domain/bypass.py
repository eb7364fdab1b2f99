"""Who uses a shared GPU past its grant: without one, beyond it, or without what enforces it.

A library inside a process cannot stop a process that is rid of it. The driver's list of processes
cannot be forged by them, so it is compared with the grants. This judges; it touches nothing.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from agent.domain.accounting import GpuProcess
from agent.domain.enforcement import EXPLAINED, ContainerState, State
from agent.domain.gpu import Gpu, scaled
from agent.domain.grants import Claim
from agent.domain.subjects import Subject

MIB = 1 << 20
# The driver counts in pages of 2 MiB and adds what a context needs, of which the hook counts what
# it could measure. More than this beyond a limit is no rounding.
TOLERATED_PERMILLE, TOLERATED_LEAST_BYTES = 50, 256 * MIB
WHOLE_GPU_PERCENT = 100
_HOW = "take NVIDIA_VISIBLE_DEVICES and privileged mode away from it"
NO_GRANT = f"it has no vGPU of this node; ask for one in its resources, or {_HOW}"
OTHER_GPU = f"its vGPUs are of other GPUs; {_HOW}"
ABOVE_GRANT = (
    "holds {} MiB of it instead of the {} MiB that were granted: one of its processes is rid of "
    "the library that keeps limits; delete the pod"
)


class Kind(StrEnum):
    """What is wrong; a label of the metric."""

    NO_GRANT = "no grant"
    OTHER_GPU = "other GPU"
    ABOVE_GRANT = "above grant"
    NOT_ENFORCED = "not enforced"
    HOST_PROCESS = "host process"


@dataclass(frozen=True, slots=True)
class Whereabouts:
    """Where a process of the driver's list is. Empty words: not known, or in no pod."""

    start_time: int  # clock ticks from boot
    program: str  # name of its executable
    pod_uid: str = ""
    container_id: str = ""  # the runtime's
    container: str = ""
    grant: str = ""  # the name of the grant whose directory it has mounted, if it has such a name


@dataclass(frozen=True, slots=True)
class Allowed:
    """Who may use a shared GPU without a grant."""

    programs: frozenset[str] = frozenset()  # of the host alone: a pod can give its own any name
    namespaces: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Bypass:
    """One finding. Of several processes of a container it names the one that holds most."""

    kind: Kind
    gpu: str
    pod_uid: str = ""
    namespace: str = ""
    pod: str = ""
    container: str = ""
    pid: int = 0
    pids: tuple[int, ...] = ()  # all of them
    program: str = ""
    explained: str = ""  # a sentence with what to do

    @property
    def key(self) -> tuple[str, ...]:
        """The same as long as the same is wrong."""
        who = self.program if self.kind is Kind.HOST_PROCESS else f"{self.pod_uid}/{self.container}"
        return (self.kind, self.gpu, who)


@dataclass(frozen=True, slots=True, kw_only=True)
class PodName:
    """A pod as far as naming it goes."""

    uid: str
    namespace: str
    name: str


Held = tuple[str, str, str]  # pod uid, container, GPU


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """All that a judgement goes by, at one moment."""

    processes: Mapping[str, Sequence[GpuProcess]]  # by GPU, those that are shared here
    traced: Mapping[int, Whereabouts]  # by pid; who is not in it has ended, or cannot be seen
    gpus: Mapping[str, Gpu]
    grants: Sequence[Subject]
    limits: Mapping[tuple[str, str], Mapping[str, int]]  # (pod uid, container) -> GPU -> bytes
    allowances: Mapping[Held, int]  # as `allowances` gave them at the look before
    pods: Mapping[str, PodName]  # by uid
    synced: bool  # all pods are among them
    # Of those whose limits were changed live: (pod uid, container) -> GPU -> the largest ever.
    changed: Mapping[tuple[str, str], Mapping[str, int]]
    states: Sequence[ContainerState]
    memory_scaling: float = 1.0  # above 1 a GPU has more to give than it has


@dataclass(frozen=True, slots=True)
class _Use:
    """What one container has on one GPU."""

    gpu: str
    pod_uid: str
    container: str
    pids: tuple[int, ...]
    used_bytes: int
    # The process that holds most of it by the driver's list, the first of equals.
    pid: int
    program: str
    most_bytes: int


def judge(node: Node, allowed: Allowed) -> tuple[Bypass, ...]:
    """Everything that is wrong now, in a fixed order; GPUs that are divided by MIG are left out."""
    found: dict[tuple[str, ...], Bypass] = {}
    may_hold = allowances(node)
    for use in _uses(node):
        bypass = _judged(use, node, allowed, may_hold)
        if bypass:
            found.setdefault(bypass.key, bypass)
    for bypass in _not_enforced(node):
        found.setdefault(bypass.key, bypass)
    return tuple(found[key] for key in sorted(found))


def sightings(bypass: Bypass, traced: Mapping[int, Whereabouts]) -> frozenset[object]:
    """What has to be seen twice, any of it, before it is said: one of these very processes."""
    return frozenset(
        (bypass.key, pid, traced[pid].start_time) for pid in bypass.pids if pid in traced
    )


def allowances(node: Node) -> dict[Held, int]:
    """What each container may hold: its limit, or what it still holds of a larger one before.

    A limit may be lowered below what is in use; that is no fault of whoever uses it. What is given
    back by then cannot be taken again. Who is seen for the first time with limits that were changed
    live may hold as much of what it does as they ever were: they may have been lowered before the
    agent started.
    """
    found: dict[Held, int] = {}
    for use in _uses(node):
        held = (use.pod_uid, use.container, use.gpu)
        limit_bytes = _limit(use, _claims(use, node), node)
        if limit_bytes:
            first = (
                node.changed[held[:2]].get(use.gpu, 0) if held[:2] in node.changed else limit_bytes
            )
            before = node.allowances.get(held, first or use.used_bytes)  # 0: none, or not known
            found[held] = max(limit_bytes, min(before, use.used_bytes))
    for held, before in node.allowances.items():
        if held not in found and not _all_traced(held[2], node):
            found[held] = before  # it may be one of those that could not be seen this time
    return found


def _all_traced(gpu: str, node: Node) -> bool:
    return gpu in node.processes and all(p.pid in node.traced for p in node.processes[gpu])


def _uses(node: Node) -> Iterable[_Use]:
    """The driver's lists by container, and by process outside of pods.

    A process of a pod whose container is not known counts with all of the pod.
    """
    sums: dict[tuple[str, str, str, int], _Use] = {}
    for gpu, processes in sorted(node.processes.items()):
        if (known := node.gpus.get(gpu)) is None or known.mig_enabled:
            continue
        unknown = {
            where.pod_uid
            for process in processes
            if (where := node.traced.get(process.pid)) and not where.container
        }
        for process in sorted(processes, key=lambda one: one.pid):
            where = node.traced.get(process.pid)
            if where is None:
                continue
            container = "" if where.pod_uid in unknown else where.container
            key = (gpu, where.pod_uid, container, 0 if where.pod_uid else process.pid)
            one = _Use(gpu, where.pod_uid, container, (process.pid,), process.used_bytes or 0,
                       process.pid, where.program, process.used_bytes or 0)  # fmt: skip
            sums[key] = _together(sums[key], one) if key in sums else one
    return sums.values()


def _together(uses: _Use, one: _Use) -> _Use:
    most = one if one.most_bytes > uses.most_bytes else uses
    pids, used_bytes = (*uses.pids, *one.pids), uses.used_bytes + one.used_bytes
    return replace(most, pids=pids, used_bytes=used_bytes)


def _judged(use: _Use, node: Node, allowed: Allowed, may_hold: Mapping[Held, int]) -> Bypass | None:
    if not use.pod_uid:
        return None if use.program in allowed.programs else _host_process(use)
    pod = node.pods.get(use.pod_uid)
    if pod and pod.namespace in allowed.namespaces:
        return None
    claims = _claims(use, node)
    if not claims:  # before all pods are known, it may be of a namespace that is allowed
        return _of(use, pod, Kind.NO_GRANT, NO_GRANT) if pod or node.synced else None
    if all(claim.uuid != use.gpu for claim in claims):
        return _of(use, pod, Kind.OTHER_GPU, OTHER_GPU)
    limit_bytes = may_hold.get((use.pod_uid, use.container, use.gpu), 0)
    if limit_bytes and use.used_bytes > limit_bytes + tolerated(limit_bytes):
        above = ABOVE_GRANT.format(use.used_bytes // MIB, limit_bytes // MIB)
        return _of(use, pod, Kind.ABOVE_GRANT, above)
    return None


def _claims(use: _Use, node: Node) -> list[Claim]:
    """What was granted to whoever uses this, of any GPU."""
    return [
        claim
        for grant in node.grants
        if grant.pod_uid == use.pod_uid and use.container in ("", grant.container)
        for claim in grant.claims
    ]


def tolerated(limit_bytes: int) -> int:
    """How much the driver may count beyond a limit that is kept."""
    return max(limit_bytes * TOLERATED_PERMILLE // 1000, TOLERATED_LEAST_BYTES)


def _limit(use: _Use, claims: Sequence[Claim], node: Node) -> int:
    """The larger of what was granted and what holds now; 0: none."""
    claims = [claim for claim in claims if claim.uuid == use.gpu]
    granted = 0 if any(not c.memory_mib for c in claims) else sum(c.memory_mib for c in claims)
    limits = [
        limit.get(use.gpu)
        for (uid, container), limit in node.limits.items()
        if uid == use.pod_uid and use.container in ("", container)
    ]
    known = [limit for limit in limits if limit is not None]
    now = 0 if 0 in known else sum(known) if known else granted * MIB
    return max(granted * MIB, now) if granted and now else 0


def _host_process(use: _Use) -> Bypass:
    return Bypass(
        kind=Kind.HOST_PROCESS,
        gpu=use.gpu,
        pid=use.pid,
        pids=use.pids,
        program=use.program,
        explained=f"the process {use.pid} ({use.program}) of the host uses the GPU {use.gpu}, "
        "which pods share, and nothing limits it; end it, take the GPU out of sharing, or name its "
        "program in --bypass-allow-programs",
    )


def _of(use: _Use, pod: PodName | None, kind: Kind, what: str) -> Bypass:
    most = ", which holds most" if kind is Kind.ABOVE_GRANT and len(use.pids) > 1 else ""
    return Bypass(
        kind=kind,
        gpu=use.gpu,
        pod_uid=use.pod_uid,
        namespace=pod.namespace if pod else "",
        pod=pod.name if pod else "",
        container=use.container,
        pid=use.pid,
        pids=use.pids,
        program=use.program,
        explained=f"container {use.container or '(unknown)'} (process {use.pid}, "
        f"{use.program}{most}) "
        f"uses the GPU {use.gpu}, but {what}",
    )


def _not_enforced(node: Node) -> Iterable[Bypass]:
    """What was seen of containers' own processes, unless it harms nobody."""
    grants = {(grant.namespace, grant.pod, grant.container): grant for grant in node.grants}
    for state in node.states:
        grant = grants.get((state.namespace, state.pod, state.container))
        if grant is None or state.state is not State.NOT_ENFORCEABLE:
            continue
        for uuid in _gpus_of(state, node) or sorted({claim.uuid for claim in grant.claims}):
            gpu = node.gpus.get(uuid)
            if gpu is None or gpu.mig_enabled or _exclusive(grant, gpu, node):
                continue
            yield Bypass(
                kind=Kind.NOT_ENFORCED,
                gpu=uuid,
                pod_uid=grant.pod_uid,
                namespace=grant.namespace,
                pod=grant.pod,
                container=grant.container,
                explained=EXPLAINED.get(state.reason, "its limits do not hold"),
            )


def _gpus_of(state: ContainerState, node: Node) -> list[str]:
    """Where the driver lists those of its processes that are not held to the limits."""
    return sorted(
        gpu
        for gpu, processes in node.processes.items()
        if any(process.pid in state.pids for process in processes)
    )


def _exclusive(grant: Subject, gpu: Gpu, node: Node) -> bool:
    """Whether the container was given all of the GPU for good: there is no limit to get round."""
    claims = [claim for claim in grant.claims if claim.uuid == gpu.uuid]
    memory_mib = sum(claim.memory_mib for claim in claims)
    core_percent = sum(claim.core_percent for claim in claims)
    all_memory = any(not claim.memory_mib for claim in claims) or (
        gpu.memory_mib is not None
        and memory_mib >= scaled(gpu.usable_mib, max(1.0, node.memory_scaling))
    )
    all_cores = any(not claim.core_percent for claim in claims)
    unchanged = (grant.pod_uid, grant.container) not in node.changed
    return unchanged and all_memory and (all_cores or core_percent >= WHOLE_GPU_PERCENT)
