"""Loop: compare the grants we remember with what kubelet says it assigned, and let go of old ones.

Done after each registration, because a restarted kubelet may have lost its checkpoint, and every
ten minutes. A mismatch cannot be mended from here (kubelet is not told, containers are running), so
it is told: log, metric, Kubernetes Event. Nobody waits for this loop.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from agent import logs
from agent.domain.grants import GrantRecord
from agent.domain.pods import Pod
from agent.errors import AgentError, KubeletUnavailable
from agent.ports import ClusterEvent, GrantLog, KubeletAssignment, PodResources
from agent.services.plugin import PluginStatus
from agent.services.published import Pods, PodTable, Published
from agent.supervisor import Lifeline

log = logs.get(__name__)

LOOK_EVERY_S = 1.0
REPEAT_EVERY_S = 600.0
RETRY_S = 10.0
SETTLE_S = 2.0  # after a registration: pods that wait for us are admitted first
YOUNG_S = 60.0  # a grant may be older than the news of its pod, and than kubelet's own books


@dataclass(frozen=True, slots=True)
class Mismatch:
    """A container about whose vGPUs kubelet and the grants disagree; `problem` is a sentence."""

    pod: Pod | None  # None: not known to the API server, as far as we have heard
    about: str  # "namespace/pod/container"
    problem: str


@dataclass(frozen=True, slots=True)
class Comparison:
    """What a look at both books gives."""

    mismatches: tuple[Mismatch, ...]
    gone: frozenset[str]  # uids of pods that hold nothing any more


def compare(
    records: Sequence[GrantRecord],
    assignments: Iterable[KubeletAssignment],
    table: PodTable,
    *,
    now_s: float,
) -> Comparison:
    """Pure: compare the grants with kubelet's assignments of the same resource.

    Kubelet's list names neither pod uids nor ordinary init containers, and lags behind an Allocate.
    """
    held = {(a.namespace, a.pod_name, a.container): a.device_ids for a in assignments}
    gone = _gone(records, table, now_s)
    granted = {(r.namespace, r.pod_name, r.container): r for r in records if r.pod_uid not in gone}
    pods = {(pod.namespace, pod.name): pod for pod in table.pods.values()}
    mismatches = []
    for key in sorted(granted.keys() | held.keys()):
        record, device_ids = granted.get(key), held.get(key)
        if record is not None and now_s - record.granted_at_s < YOUNG_S:
            continue
        pod = pods.get(key[:2])
        problem = _problem(record, device_ids, pod, key[2])
        if problem:
            mismatches.append(Mismatch(pod, "/".join(key), problem))
    return Comparison(tuple(mismatches), gone)


def _gone(records: Iterable[GrantRecord], table: PodTable, now_s: float) -> frozenset[str]:
    """Pods whose grants have no use any more: deleted, or finished for good."""
    if not table.synced:
        return frozenset()
    return frozenset(
        record.pod_uid
        for record in records
        if now_s - record.granted_at_s >= YOUNG_S
        and ((pod := table.pods.get(record.pod_uid)) is None or pod.finished)
    )


def _problem(
    record: GrantRecord | None,
    device_ids: tuple[str, ...] | None,
    pod: Pod | None,
    container: str,
) -> str:
    if record is None:
        if pod is None or pod.finished:
            return ""  # news of it may be on its way, or it is history
        return (
            f"kubelet assigned {_named(device_ids)} to it, but no such grant is remembered: its "
            "limits cannot be vouched for; create the pod again"
        )
    if device_ids is None:
        if pod is None or pod.finished or not _listed(pod, container):
            return ""
        return (
            f"it was granted {_named(record.device_ids)}, but kubelet knows nothing of that (was "
            "its checkpoint lost?) and may give the same vGPUs away once more; create the pod again"
        )
    if set(device_ids) != set(record.device_ids):
        return (
            f"it was granted {_named(record.device_ids)}, but kubelet assigned "
            f"{_named(device_ids)}; create the pod again"
        )
    return ""


def _listed(pod: Pod, container: str) -> bool:
    """Whether kubelet's list names this container at all while the pod runs."""
    return pod.phase == "Running" and any(
        c.name == container and c.kind == "app" for c in pod.containers
    )


def _named(device_ids: Sequence[str] | None) -> str:
    return ", ".join(device_ids or ()) or "nothing"


class Reconcile:
    """The loop around `compare`."""

    name = "reconcile"

    def __init__(  # noqa: PLR0913 - wired once, by name
        self,
        resource: str,
        grants: GrantLog,
        pod_resources: PodResources,
        pods: Pods,
        status: Published[PluginStatus],
        *,
        count: Callable[[], None] = lambda: None,
        post: Callable[[ClusterEvent], None] = lambda _: None,
        settle_s: float = SETTLE_S,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._resource = resource
        self._grants = grants
        self._pod_resources = pod_resources
        self._pods = pods
        self._status = status
        self._count = count
        self._post = post
        self._settle_s = settle_s
        self._clock = clock
        self._wall_clock = wall_clock
        self._seen_registrations = 0
        self._due_s: float | None = None  # None: not registered yet, so nothing to compare
        self._known: Mapping[str, str] = {}  # about -> problem, told already

    def run(self, life: Lifeline) -> None:
        """Look each second whether there is a reason to compare."""
        for _ in life.every(LOOK_EVERY_S):
            life.pulse(30.0)
            self.step_once()

    def step_once(self) -> Comparison | None:
        """Compare if it is due; gives what was found."""
        now_s = self._clock()
        registrations = self._status.now().registrations
        if registrations != self._seen_registrations:
            self._seen_registrations = registrations
            self._due_s = now_s + self._settle_s
        if self._due_s is None or now_s < self._due_s:
            return None
        self._due_s = now_s + REPEAT_EVERY_S
        try:
            return self.compare_once()
        except KubeletUnavailable as error:
            log.failing("assignments unknown", about=self._resource, error=error)
        except AgentError as error:
            log.failing("reconciliation failed", about=self._resource, error=error)
        self._due_s = now_s + RETRY_S
        return None

    def compare_once(self) -> Comparison:
        """Look at both books, tell what is new, forget what is gone. Raises AgentError."""
        records = self._grants.records()  # before the list: a newer grant is not a mismatch
        assignments = [a for a in self._pod_resources.assignments() if a.resource == self._resource]
        found = compare(records, assignments, self._pods.now(), now_s=self._wall_clock())
        log.recovered("assignments unknown", about=self._resource)
        for mismatch in found.mismatches:
            if self._known.get(mismatch.about) != mismatch.problem:
                self._tell(mismatch)
        self._known = {m.about: m.problem for m in found.mismatches}
        if found.gone:
            self._grants.forget(found.gone)
            log.info("grants released", pods=len(found.gone))
        return found

    def _tell(self, mismatch: Mismatch) -> None:
        self._count()
        log.error("grant mismatch", container=mismatch.about, problem=mismatch.problem)
        self._post(
            ClusterEvent(
                reason="VgpuGrantMismatch",
                message=f"container {mismatch.about}: {mismatch.problem}",
                pod=mismatch.pod,
            )
        )
