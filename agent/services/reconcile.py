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

REPEAT_EVERY_S = 600.0
RETRY_S = 10.0
COMPARING_S = 30.0
SETTLE_S = 2.0  # after a registration: pods that wait for us are admitted first
YOUNG_S = 60.0  # a grant may be older than the news of its pod, and than kubelet's own books


@dataclass(frozen=True, slots=True)
class Mismatch:
    """A container about whose vGPUs kubelet and the grants disagree; `problem` is a sentence."""

    pod: Pod
    about: str  # "namespace/pod/container"
    problem: str


@dataclass(frozen=True, slots=True)
class Comparison:
    """What a look at both books gives."""

    mismatches: tuple[Mismatch, ...] = ()
    gone: frozenset[str] = frozenset()  # uids of pods that hold nothing any more
    unremembered: int = 0  # containers that got their vGPUs from another plugin, or before a reset


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
    pods = {(pod.namespace, pod.name): pod for pod in table.pods.values()}
    mismatches, granted = [], set()
    for record in records:
        key = (record.namespace, record.pod_name, record.container)
        granted.add(key)
        if record.pod_uid in gone or not record.answered or _young(record, now_s):
            continue
        pod = pods.get(key[:2])
        if pod is None or pod.uid != record.pod_uid or pod.finished:
            continue
        if problem := _problem(record, held.get(key), pod):
            mismatches.append(Mismatch(pod, "/".join(key), problem))
    return Comparison(tuple(mismatches), gone, len(held.keys() - granted))


def _young(record: GrantRecord, now_s: float) -> bool:
    """Whether news of it may still be on the way, to the API server or into kubelet's books."""
    return abs(now_s - record.granted_at_s) < YOUNG_S  # the clock may have been set back


def _gone(records: Iterable[GrantRecord], table: PodTable, now_s: float) -> frozenset[str]:
    """Pods whose grants have no use any more: deleted, or finished for good."""
    if not table.synced:
        return frozenset()
    return frozenset(
        record.pod_uid
        for record in records
        if not _young(record, now_s)
        and ((pod := table.pods.get(record.pod_uid)) is None or pod.finished)
    )


def _problem(record: GrantRecord, device_ids: tuple[str, ...] | None, pod: Pod) -> str:
    if device_ids is None and _listed(pod, record.container):
        return (
            f"it was granted {_named(record.device_ids)}, but kubelet knows nothing of that (was "
            "its checkpoint lost?) and may give the same vGPUs away once more; create the pod again"
        )
    if device_ids is not None and set(device_ids) != set(record.device_ids):
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


def _named(device_ids: Sequence[str]) -> str:
    return ", ".join(device_ids) or "nothing"


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
        self._unremembered = 0

    def run(self, life: Lifeline) -> None:
        """Compare when it is due; a new registration, and the stop, end the wait."""
        life.on_stop(self._status.poke)
        while not life.stopping:
            version, _ = self._status.read()
            life.pulse(COMPARING_S)
            self.step_once()
            wait_s = self._next_due_s()
            life.pulse(wait_s + COMPARING_S)
            self._status.wait_for_change(version, wait_s)

    def _next_due_s(self) -> float:
        """Seconds until there may be something to do."""
        if self._due_s is None:
            return REPEAT_EVERY_S
        return max(0.0, self._due_s - self._clock())

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
        if found.unremembered != self._unremembered:
            self._unremembered = found.unremembered
            log.info("grants of others found", containers=found.unremembered)
        if found.gone:
            self._grants.forget(found.gone)
            log.info("grants released", pods=len(found.gone))
        log.recovered("reconciliation failed", about=self._resource)
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
