"""Ends the bind of a pod: bind-phase, then the node lock, whatever happens in between.

Allocate tries at once with `finish`; what the API server does not take in time is tried again by
the loop until it is done or the pod is gone. The loop also ends binds that a crash left behind, by
looking at the snapshots; it asks the API server nothing while there is nothing to do.
"""

import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from agent import logs
from agent.domain.choice import (
    bind_time_s,
    is_locked_for,
    left_behind,
    legacy_lock_is_over,
    lock_is_for,
    runs_without_grant,
)
from agent.domain.dialect import ALLOCATING, FAILED, HAMI, SUCCESS, Dialect
from agent.domain.grants import GrantRecord
from agent.domain.nodelock import NodeLock, decode_lock
from agent.domain.pods import Pod
from agent.errors import ClusterConflict, ClusterError, ClusterGone
from agent.ports import ClusterEvent
from agent.services.node_view import NodeView
from agent.supervisor import Lifeline

log = logs.get(__name__)

GRACE_S = 3.0  # longer than an Allocate may take: nobody is at work on the pod any more
LEGACY_GRACE_S = 10.0  # longer than a bind takes: a lock without a name is of no pod still to come
LOCK_SEEN_WITHIN_S = 1.0  # the scheduler writes the lock before it binds: the watch is late, if so
TRY_S = 5.0
ENOUGH_S = 0.1  # with less time left an inline try is not begun
FIRST_RETRY_S, LONGEST_RETRY_S = 0.2, 30.0
IDLE_S = 30.0
CAPACITY = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenBind:
    """The bind of a pod that is decided but not written down completely."""

    pod: Pod
    phase: str
    phase_written: bool
    lock: str  # the lock's value when it was the pod's; empty: it was not seen yet
    since_s: float
    due_s: float
    awaits_vendors: bool = False
    tries: int = 0


class BindFinisher:
    """Writes bind phases and frees the lock. Thread-safe."""

    name = "bind-finisher"

    def __init__(
        self,
        view: NodeView,
        records: Callable[[], Sequence[GrantRecord]],
        *,
        clock: Callable[[], float] = time.monotonic,
        jitter: Callable[[], float] = random.random,
        grace_s: float = GRACE_S,
        post: Callable[[ClusterEvent], None] = lambda _: None,
        dialect: Dialect = HAMI,
    ) -> None:
        """`records` gives the grants on record: a pod that has one was served."""
        self._dialect = dialect
        self._view = view
        self._records = records
        self._post = post
        self._clock = clock
        self._jitter = jitter
        self._grace_s = grace_s
        self._mutex = threading.Lock()
        self._open: dict[str, OpenBind] = {}  # by pod uid, oldest first
        self._owner: tuple[str, Pod] | None = None  # lock value and its pod as last seen
        self._left_behind: dict[tuple[str, str, str], float] = {}  # what, due when
        self._wake = threading.Event()

    # --- called by Allocate

    def finish(
        self, pod: Pod, phase: str, *, phase_written: bool = False, deadline_s: float
    ) -> None:
        """End the bind of a pod now, or as far as possible until `deadline_s`; never raises."""
        bind = self._bind(pod, phase, phase_written=phase_written)
        left: OpenBind | None = bind
        if deadline_s - self._clock() >= ENOUGH_S:
            try:
                left = self._advance(bind, deadline_s)
            except Exception as error:  # noqa: BLE001 - it must not cost a granted container its life
                log.error("bind unfinished", pod=pod.full_name, error=repr(error))
        if left is not None:
            self._put(left)

    def finish_after_vendors(self, pod: Pod) -> None:
        """End the bind as a success once the plugins of other vendors are through, or had time."""
        bind = self._bind(pod, SUCCESS, phase_written=False)
        self._put(replace(bind, awaits_vendors=True, due_s=bind.since_s + self._grace_s))

    def failed(self) -> frozenset[str]:
        """The uids of the pods whose failure is decided but perhaps not written."""
        with self._mutex:
            return frozenset(uid for uid, bind in self._open.items() if bind.phase == FAILED)

    def _bind(self, pod: Pod, phase: str, *, phase_written: bool) -> OpenBind:
        now_s = self._clock()
        lock = self._view.lock()
        own = lock is not None and (lock.names(pod) or (lock.legacy and is_locked_for(pod)))
        return OpenBind(
            pod=pod,
            phase=phase,
            phase_written=phase_written,
            lock=lock.value if lock is not None and own else "",
            since_s=now_s,
            due_s=now_s,
        )

    def _put(self, bind: OpenBind) -> None:
        with self._mutex:
            self._open.pop(bind.pod.uid, None)
            self._open[bind.pod.uid] = bind
            dropped = len(self._open) > CAPACITY and self._open.pop(next(iter(self._open)))
        if dropped:
            log.error("bind not finished", pod=dropped.pod.full_name, error="too many are open")
        self._wake.set()

    # --- one try

    def _advance(self, bind: OpenBind, deadline_s: float) -> OpenBind | None:
        """Do what can be done; what is left, or None. The lock is freed even without the phase."""
        error: ClusterError | None = None
        released = False
        if not bind.phase_written:
            try:
                self._write_phase(bind, deadline_s)
                bind = replace(bind, phase_written=True)
            except ClusterError as caught:
                error = caught
        try:
            released = self._release(bind, deadline_s)
        except ClusterError as caught:
            error = error or caught
        if bind.phase_written and released:
            log.recovered("bind unfinished", about=bind.pod.full_name)
            return None
        if error is None:  # only the watch is late
            return replace(bind, due_s=self._clock() + LOCK_SEEN_WITHIN_S)
        log.failing("bind unfinished", about=bind.pod.full_name, error=error, phase=bind.phase)
        ceiling_s = min(LONGEST_RETRY_S, FIRST_RETRY_S * 2.0 ** min(bind.tries, 10))
        delay_s = ceiling_s * (0.5 + 0.5 * self._jitter())
        return replace(bind, tries=bind.tries + 1, due_s=self._clock() + delay_s)

    def _still_here(self, pod: Pod) -> bool:
        table = self._view.pods.now()
        return pod.uid in table.pods or not table.synced

    def _write_phase(self, bind: OpenBind, deadline_s: float) -> None:
        """Set the phase, unless the pod is gone or somebody was faster. Raises ClusterError."""
        pod = self._view.pod(bind.pod.uid) or bind.pod
        phase = pod.annotations.get(self._dialect.bind_phase)
        if phase in (bind.phase, FAILED) or not self._still_here(pod):
            return
        try:
            changes = self._dialect.ending(bind.phase)
            self._view.patch_pod(pod, changes, expected={}, deadline_s=deadline_s)
        except ClusterGone:
            return

    def _lock_to_remove(self, bind: OpenBind) -> str:
        lock = self._view.lock()
        if lock is None:
            return ""
        own = lock.value == bind.lock or self._is_locked_by(lock, bind.pod)
        return lock.value if own else ""

    def _is_locked_by(self, lock: NodeLock, pod: Pod) -> bool:
        """Whether it is the pod's; once that is gone, a later one of its name may have taken it."""
        if self._still_here(pod):
            return lock.names(pod)
        others = self._view.pods.now().pods.values()
        return lock_is_for(lock, pod, self._dialect) and not any(map(lock.names, others))

    def _release(self, bind: OpenBind, deadline_s: float) -> bool:
        """Free the lock if it is this pod's; False while that cannot be told.

        Raises ClusterError.
        """
        value = self._lock_to_remove(bind)
        if not value and not bind.lock and is_locked_for(bind.pod):
            if self._clock() - bind.since_s < LOCK_SEEN_WITHIN_S:
                return False
            self._view.read_node(deadline_s=deadline_s)
            value = self._lock_to_remove(bind)
        if not value:
            return True
        try:
            self._view.remove_lock(value, deadline_s=deadline_s)
        except ClusterConflict:
            self._view.read_node(deadline_s=deadline_s)
            return not self._lock_to_remove(bind)
        except ClusterGone:
            return True
        return True

    # --- the loop

    def run(self, life: Lifeline) -> None:
        life.on_stop(self._wake.set)
        forget = [
            self._view.pods.listen(self._wake.set),
            self._view.own_node.listen(self._wake.set),
        ]
        try:
            while not life.stopping:
                life.pulse(IDLE_S + 2 * TRY_S)
                wait_s = self.step_once()
                self._wake.wait(wait_s)
                self._wake.clear()
        finally:
            for undo in forget:
                undo()

    def step_once(self) -> float:
        """Try the bind that is due longest, if any; give the seconds until something is due."""
        self._notice_left_behind()
        with self._mutex:
            binds = list(self._open.values())
        due = [bind for bind in binds if self._is_due(bind)]
        if due:
            bind = min(due, key=lambda bind: bind.due_s)
            self._settle(bind, self._advance(bind, self._clock() + TRY_S))
        return 0.0 if len(due) > 1 else self._next_due_s()

    def _is_due(self, bind: OpenBind) -> bool:
        if bind.due_s <= self._clock():
            return True
        pod = self._view.pod(bind.pod.uid)
        if bind.awaits_vendors:
            return pod is not None and not self._dialect.others_pending(pod)
        return bind.tries == 0 and bool(self._lock_to_remove(bind))  # the watch brought it

    def _settle(self, tried: OpenBind, left: OpenBind | None) -> None:
        with self._mutex:
            if self._open.get(tried.pod.uid) is not tried:
                return  # Allocate has decided anew meanwhile
            if left is None:
                del self._open[tried.pod.uid]
            else:
                self._open[tried.pod.uid] = left

    def _next_due_s(self) -> float:
        now_s = self._clock()
        with self._mutex:
            dues = [bind.due_s for bind in self._open.values()]
        dues += self._left_behind.values()
        return max(0.0, min([*(due - now_s for due in dues), IDLE_S]))

    def _unended(self) -> Iterator[tuple[Pod, str]]:
        """The pods whose bind is decided but not written, each with the phase; from memory."""
        lock, table = self._view.lock(), self._view.pods.now()
        if not table.synced:
            return
        pods = table.pods.values()
        key = self._dialect.bind_phase
        unwritten = [pod for pod in pods if pod.annotations.get(key) == ALLOCATING]
        owner = None
        if lock is not None:
            owner = self._owner_of(lock, pods, unwritten)
            if owner is not None:
                self._owner = (lock.value, owner)
            elif self._owner is not None and self._owner[0] == lock.value:
                gone = self._owner[1]
                if not lock.legacy or self._is_over(lock, gone, unwritten):
                    yield gone, FAILED  # deleted while it held the lock
        if owner is not None and owner not in unwritten:
            unwritten.append(owner)
        granted = {record.pod_uid for record in self._records()} if unwritten else set()
        for pod in unwritten:
            if phase := left_behind(pod, granted=pod.uid in granted, dialect=self._dialect):
                yield pod, phase

    def _notice_left_behind(self) -> None:
        """End the binds that are decided, but that nobody has ended for a while."""
        now_s, lock = self._clock(), self._view.lock()
        before, self._left_behind = self._left_behind, {}
        for pod, phase in self._unended():
            with self._mutex:
                if pod.uid in self._open:
                    continue
            seen = (pod.uid, phase, lock.value if lock else "")
            grace_s = LEGACY_GRACE_S if lock is not None and lock.legacy else self._grace_s
            due_s = before.get(seen, now_s + grace_s)
            if now_s < due_s:
                self._left_behind[seen] = due_s
                continue
            log.info("bind left behind", pod=pod.full_name, phase=phase)
            if runs_without_grant(pod, self._dialect):
                self._post(
                    ClusterEvent(
                        reason="RunsWithoutGrant",
                        message="kubelet started this pod without asking for its vGPUs, so it "
                        "has no GPU and no limits; delete it so that it is created anew",
                        pod=pod,
                    )
                )
            bind = self._bind(pod, phase, phase_written=False)
            self._put(bind if self._may_take(bind.lock, pod) else replace(bind, lock=""))

    def _may_take(self, value: str, pod: Pod) -> bool:
        """Whether the lock is this pod's, though Allocate did not see it being taken."""
        lock, pods = decode_lock(value), self._view.pods.now().pods.values()
        return lock is None or not lock.legacy or self._is_over(lock, pod, pods)

    def _is_over(self, lock: NodeLock, pod: Pod, pods: Iterable[Pod]) -> bool:
        return legacy_lock_is_over(lock, pod, pods, self._dialect)

    def _owner_of(self, lock: NodeLock, pods: Iterable[Pod], binding: Sequence[Pod]) -> Pod | None:
        """The pod that the lock was taken for; of one without a name, the last that it can be."""
        if not lock.legacy:
            return next((pod for pod in pods if lock_is_for(lock, pod, self._dialect)), None)
        possible = [pod for pod in pods if self._is_over(lock, pod, binding)]
        return max(possible, key=lambda pod: bind_time_s(pod, self._dialect) or 0.0, default=None)
