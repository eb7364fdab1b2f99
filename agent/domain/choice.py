"""Which pod an Allocate is for: kubelet does not say.

What is known: how many vGPUs are asked for and with which ids, the pods bound to this node, the
scheduler's lock, and what was granted before. Kubelet admits one pod after the other, in the order
in which they were bound. HAMi takes the pod that the lock names without looking at it
(pkg/util/util.go, GetPendingPod); here whoever is taken must also wait for such a slot.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from agent.domain.claims import holds_devices
from agent.domain.dialect import ALLOCATING, FAILED, HAMI, SUCCESS, Dialect
from agent.domain.grants import GrantRecord
from agent.domain.matching import Turn, next_turn, open_slots_left, undecided
from agent.domain.nodelock import CLOCK_SLACK_S, NodeLock
from agent.domain.pods import Pod
from agent.errors import AgentError, AllocateRefused, MalformedAnnotation

LATEST = float("inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """The pod that asks, as far as can be told, and why it cannot be served."""

    pod: Pod
    error: AgentError


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """All that is known when an Allocate comes in."""

    node_name: str
    pods: Sequence[Pod] = ()  # in the order in which they arrived
    lock: NodeLock | None = None
    records: Sequence[GrantRecord] = ()  # oldest first
    failed: Collection[str] = frozenset()  # uids whose bind ended as failed, written or not
    preferred: str = ""  # uid of the pod to which GetPreferredAllocation gave these very ids
    last_served: str = ""  # uid of the pod served last
    dialect: Dialect = HAMI

    def of(self, pod: Pod) -> list[GrantRecord]:
        """What was granted to this pod, oldest first."""
        return [record for record in self.records if record.pod_uid == pod.uid]


def bind_time_s(pod: Pod, dialect: Dialect = HAMI) -> float | None:
    """When the scheduler bound the pod, unix time; None when it does not say."""
    return _time_s(pod, dialect.bind_time)


def _order_s(pod: Pod, dialect: Dialect) -> float:
    """The time by which it is served; a bind time may be missing, any other comes last then."""
    missing_s = 0.0 if dialect.order == dialect.bind_time else LATEST
    time_s = _time_s(pod, dialect.order)
    return missing_s if time_s is None else time_s


def _time_s(pod: Pod, key: str) -> float | None:
    text = pod.annotations.get(key)
    if text is None:
        return None
    return float(text) if text.isascii() and text.isdigit() and len(text) <= 19 else LATEST  # noqa: PLR2004


def is_locked_for(pod: Pod) -> bool:
    """Whether the scheduler locks the node for such a pod: only app containers count."""
    return any(c.vgpus for c in pod.containers if c.kind == "app")


def _waits(pod: Pod, evidence: Evidence) -> bool:
    """Whether the scheduler has bound the pod to us and its bind is not over."""
    return (
        pod.node_name == evidence.node_name
        and pod.annotations.get(evidence.dialect.node) == evidence.node_name
        and pod.annotations.get(evidence.dialect.bind_phase) in (ALLOCATING, SUCCESS)
        and not (pod.deleting or pod.finished or pod.uid in evidence.failed)
    )


def _listed(pod: Pod, dialect: Dialect) -> bool:
    return pod.phase == "Pending" and dialect.bind_time in pod.annotations


def candidates(evidence: Evidence) -> list[Pod]:
    """The pods that kubelet may be asking for, the likeliest first.

    First the pod that was told to ask for these very ids, and the one whose containers are being
    served. Then the pod of the lock, but behind those that are never locked (vGPUs in init
    containers only) and were bound before it: kubelet is serial, they are still to come. Then all
    others, by bind time, and within the same second as they arrived.
    """
    waiting = [
        (pod, (_order_s(pod, evidence.dialect), place, pod.created_at, pod.full_name))
        for place, pod in enumerate(evidence.pods)
        if _waits(pod, evidence)
        and (
            _listed(pod, evidence.dialect)
            or (evidence.lock is not None and evidence.lock.names(pod))
        )
    ]
    lock = evidence.lock
    locked = next((key for pod, key in waiting if lock is not None and lock.names(pod)), None)

    def rank(pod: Pod, key: tuple[float, int, str, str]) -> int:
        if pod.uid == evidence.preferred:
            return 0
        if pod.uid == evidence.last_served:
            return 1
        if locked is not None and key < locked and not is_locked_for(pod):
            return 2
        return 3 if key == locked else 4

    return [pod for pod, key in sorted(waiting, key=lambda entry: (rank(*entry), entry[1]))]


def _alive(pod: Pod, evidence: Evidence) -> bool:
    """Whether the pod can still use a grant."""
    phase = pod.annotations.get(evidence.dialect.bind_phase)
    given_up = pod.uid in evidence.failed or phase == FAILED
    return not (pod.deleting or pod.finished or given_up)


def _pending_turn(pod: Pod, vgpus: int, evidence: Evidence, *, in_order: bool) -> Turn | None:
    """The pod's next turn; with the record if it was granted before a crash, but not answered."""
    records = evidence.of(pod)
    served = frozenset(record.container for record in records if record.answered)
    turn = next_turn(pod, vgpus, served=served, in_order=in_order, dialect=evidence.dialect)
    if turn is None:
        return None
    same = [r for r in records if r.container == turn.container.name and r.claims == turn.claims]
    return replace(turn, record=same[-1]) if same else turn


def _first_in_order(pods: Iterable[Pod], vgpus: int, evidence: Evidence) -> Turn | None:
    for pod in pods:
        try:
            turn = _pending_turn(pod, vgpus, evidence, in_order=True)
        except MalformedAnnotation:
            continue  # it must not keep the other pods of the node from starting
        if turn is not None:
            return turn
    return None


def _again(pod: Pod, record: GrantRecord, dialect: Dialect) -> Turn | None:
    """The turn of a container that has its grant on record; None if it no longer exists."""
    container = next((c for c in pod.containers if c.name == record.container), None)
    if container is None:
        return None
    return Turn(
        pod=pod,
        container=container,
        claims=record.claims,
        remaining=None,
        last=not open_slots_left(pod, dialect),
        record=record,
    )


def _unanswered(evidence: Evidence, device_ids: tuple[str, ...]) -> Turn | None:
    """A grant that was written down for these very ids, but whose answer never went out."""
    for record in evidence.records:
        if record.answered or record.device_ids != device_ids:
            continue
        pod = next((p for p in evidence.pods if p.uid == record.pod_uid), None)
        if pod is None or not _alive(pod, evidence):
            continue
        turn = _first_in_order([pod], len(device_ids), evidence)
        if turn is not None and turn.container.name == record.container:
            return turn  # its slot is not erased yet
        return _again(pod, record, evidence.dialect)
    return None


def _repeated(evidence: Evidence, device_ids: tuple[str, ...]) -> Turn | None:
    """The same question once more: the same answer, the youngest if several were given.

    (An init container and a later one of its pod may have been given the same ids.)
    """
    living = {pod.uid: pod for pod in evidence.pods if _alive(pod, evidence)}
    for record in reversed(evidence.records):
        if record.device_ids == device_ids and record.pod_uid in living:
            return _again(living[record.pod_uid], record, evidence.dialect)
    return None


def forgotten(evidence: Evidence, available: Collection[str], vgpus: int) -> tuple[str, ...] | None:
    """The ids of a running container that kubelet has forgotten, if there is just one such.

    Kubelet offers ids that a living container holds only when its checkpoint was lost. When that
    container then crashes, kubelet asks for it anew, and it must get its old ids to get its old
    grant. With several of them nobody can tell which one it is: None.
    """
    living = {pod.uid: pod for pod in evidence.pods if _alive(pod, evidence)}
    found = set()
    for record in evidence.records:
        pod = living.get(record.pod_uid)
        if pod is None or len(record.device_ids) != vgpus:
            continue
        kind = next((c.kind for c in pod.containers if c.name == record.container), "init")
        if kind != "init" and set(record.device_ids) <= set(available):
            found.add(record.device_ids)
    return found.pop() if len(found) == 1 else None


def choose_turn(evidence: Evidence, vgpus: int, device_ids: tuple[str, ...] | None) -> Turn | None:
    """Decide for whom kubelet asks for `vgpus` vGPUs with these ids (sorted).

    `device_ids` is None when they are not chosen yet (GetPreferredAllocation). None: nobody who is
    known waits for such a thing; perhaps the pod is not known yet.
    """
    pods = candidates(evidence)
    if pods and pods[0].uid == evidence.preferred:
        turn = _first_in_order(pods[:1], vgpus, evidence)
        if turn is not None:
            return turn
    if device_ids is not None:
        turn = _unanswered(evidence, device_ids)
        if turn is not None:
            return turn
    turn = _first_in_order(pods, vgpus, evidence)
    if turn is None and device_ids is not None:
        turn = _repeated(evidence, device_ids)
    return turn


def choose_anyway(evidence: Evidence, vgpus: int) -> Turn | Refusal | None:
    """When `choose_turn` finds nobody although all pods are known: the best that is left.

    A pod with a slot of this size out of order; otherwise the likeliest pod that asks for as many
    vGPUs but cannot be served, so that its bind is ended and its lock does not stay behind.
    """
    refusal = None
    for pod in candidates(evidence):
        try:
            turn = _pending_turn(pod, vgpus, evidence, in_order=False)
        except AllocateRefused as error:
            refusal = refusal or Refusal(pod=pod, error=error)
            continue
        if turn is not None:
            return turn
        lost = _without_decision(pod, vgpus, evidence)
        if lost is not None:
            refusal = refusal or Refusal(pod=pod, error=lost)
    return refusal


def _without_decision(pod: Pod, vgpus: int, evidence: Evidence) -> MalformedAnnotation | None:
    """Why a pod that is under way cannot be served: what was decided for it is not there.

    A bind that is a success already had its decision: the annotation is empty because it was
    consumed, even if we have no record of it.
    """
    dialect = evidence.dialect
    if pod.phase != "Pending" or pod.annotations.get(dialect.bind_phase) != ALLOCATING:
        return None
    served = frozenset(record.container for record in evidence.of(pod) if record.answered)
    return undecided(pod, vgpus, served=served, dialect=dialect)


def lock_is_for(lock: NodeLock, pod: Pod, dialect: Dialect = HAMI) -> bool:
    """Whether the lock was taken for this very pod, and not for a later one of the same name."""
    bound_at_s = bind_time_s(pod, dialect)
    return (
        lock.names(pod)
        and is_locked_for(pod)
        and lock.taken_at_s is not None
        and bound_at_s is not None
        and lock.taken_at_s <= bound_at_s + CLOCK_SLACK_S
    )


def legacy_lock_is_over(
    lock: NodeLock, pod: Pod, pods: Iterable[Pod], dialect: Dialect = HAMI
) -> bool:
    """Whether a lock that names nobody was taken for nobody after this pod, whose bind has ended.

    Anyone may delete such a lock, but only while no other pod of the node is being bound under it.
    """
    bound_at_s = bind_time_s(pod, dialect)
    return (
        lock.legacy
        and is_locked_for(pod)
        and lock.taken_at_s is not None
        and bound_at_s is not None
        and bound_at_s < LATEST
        and lock.taken_at_s <= bound_at_s + CLOCK_SLACK_S
        and not any(
            other.uid != pod.uid
            and other.annotations.get(dialect.bind_phase) == ALLOCATING
            and not other.finished
            for other in pods
        )
    )


def left_behind(pod: Pod, *, granted: bool, dialect: Dialect = HAMI) -> str | None:
    """The phase with which to end the bind of a pod that nobody is going to ask for again.

    "success": all its vGPUs were handed out; "failed": kubelet or an agent gave it up, or it runs
    without its grant; None: it is under way, or not ours. An annotation that names no vGPU shows
    only together with something else that they were handed out: it may have been emptied by others.

    `granted`: whether there is a record of a grant to this pod.
    """
    if not any(c.vgpus for c in pod.containers):
        return None
    phase, nothing_left = pod.annotations.get(dialect.bind_phase), _nothing_left(pod, dialect)
    if phase == FAILED:
        return FAILED
    if nothing_left and phase == SUCCESS:
        return SUCCESS
    if pod.phase == "Failed" or runs_without_grant(pod, dialect):
        return FAILED
    if nothing_left:
        return SUCCESS if granted or pod.phase in ("Running", "Succeeded") else None
    return FAILED if pod.finished else None


def _nothing_left(pod: Pod, dialect: Dialect) -> bool:
    try:
        slots = dialect.codec.decode(pod.annotations.get(dialect.to_allocate, ""))
    except MalformedAnnotation:
        return False
    return not dialect.codec.pending(slots)


def runs_without_grant(pod: Pod, dialect: Dialect = HAMI) -> bool:
    """Whether kubelet started a pod of which nothing was ever asked here: it has no limits.

    Kubelet 1.20 does that when its checkpoint is lost and no plugin is registered at the moment.
    """
    decided = pod.annotations.get(dialect.decided, "")
    return (
        pod.phase == "Running"
        and holds_devices(decided)
        and pod.annotations.get(dialect.to_allocate) == decided
    )
