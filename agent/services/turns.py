"""Whose turn it is: from the snapshots, a little later from the watch, at last from the API server.

Shared by Allocate and GetPreferredAllocation, so that both decide alike.
"""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable

from agent import logs
from agent.domain.choice import Evidence, Refusal, choose_anyway, choose_turn, forgotten
from agent.domain.dialect import ALLOCATING, HAMI, Dialect
from agent.domain.matching import Turn
from agent.domain.pods import Pod
from agent.errors import (
    ClusterDenied,
    ClusterError,
    ClusterForbids,
    ClusterUnavailable,
    NoPendingPod,
)
from agent.ports import GrantLog
from agent.services.node_view import NodeView

log = logs.get(__name__)

WATCH_WAIT_S = 0.25
NODE_READ_S = 0.5
HINTS, HINT_LIVES_S = 64, 60.0

Ids = tuple[str, ...]


def short_reason(error: ClusterError) -> str:
    """Why the API server did not do it, for a pod's owner: what it said belongs in our log."""
    if isinstance(error, ClusterForbids):
        return "a policy of the cluster denies it"
    if error.code:
        return f"it answered {error.code}"
    if isinstance(error, ClusterDenied):
        return "it does not accept the agent's credentials"
    return "no usable answer came in time"


def refused_by_cluster(error: ClusterError, sentence: str) -> ClusterError:
    """The error with a sentence for the pod's owner in place of what the transport says."""
    kind = ClusterDenied if isinstance(error, ClusterDenied) else ClusterUnavailable
    return kind(sentence, code=error.code)


class Turns:
    """Finds the container that kubelet asks for. Thread-safe."""

    def __init__(
        self,
        view: NodeView,
        grant_log: GrantLog,
        *,
        failed: Callable[[], Collection[str]],
        clock: Callable[[], float] = time.monotonic,
        watch_wait_s: float = WATCH_WAIT_S,
        dialect: Dialect = HAMI,
    ) -> None:
        """`failed` gives the uids of pods whose bind is given up, perhaps not yet written."""
        self._view = view
        self._grant_log = grant_log
        self._failed = failed
        self._clock = clock
        self._watch_wait_s = watch_wait_s
        self._dialect = dialect
        self._lock = threading.Lock()
        self._hints: OrderedDict[Ids, tuple[str, float]] = OrderedDict()
        self._last_served = ""

    def find(self, vgpus: int, device_ids: Ids | None, *, deadline_s: float) -> Turn | Refusal:
        """The container that asks for `vgpus` vGPUs with these ids (sorted; None: not chosen yet).

        Waits a moment for the watch, as kubelet may have heard of the pod first; then reads the
        pods and the node once. A Refusal names the pod that asks but cannot be served.

        Raises NoPendingPod, ClusterError.
        """
        self._know_node(deadline_s)
        wait_until_s = min(self._clock() + self._watch_wait_s, deadline_s)
        while True:
            version, table = self._view.pods.read()
            turn = choose_turn(self._evidence(table.pods.values(), device_ids), vgpus, device_ids)
            if turn is not None and turn.remaining is not None:
                return turn
            if turn is not None:  # an answer given before: is the pod that had it still there?
                return self._find_by_reading(vgpus, device_ids, deadline_s)
            left_s = wait_until_s - self._clock()
            if left_s <= 0 or not self._view.pods.wait_for_change(version, left_s):
                return self._find_by_reading(vgpus, device_ids, deadline_s)

    def _find_by_reading(
        self, vgpus: int, device_ids: Ids | None, deadline_s: float
    ) -> Turn | Refusal:
        try:
            pods = self._view.read_pods(deadline_s=deadline_s)
        except ClusterError as error:
            return self._find_unread(vgpus, device_ids, error)
        log.recovered("pods unreadable")
        self._read_node(deadline_s)
        evidence = self._evidence(pods, device_ids)
        found = choose_turn(evidence, vgpus, device_ids) or choose_anyway(evidence, vgpus)
        if found is None:
            raise NoPendingPod(
                f"{self._nobody(vgpus)}: the scheduler has set "
                f"{self._dialect.bind_phase}={ALLOCATING} on none that asks for as many; check "
                f"that the pod has the schedulerName of {self._dialect.scheduler}, then delete it "
                "so that it is scheduled again"
            )
        self._view.saw_pod(found.pod)
        return found

    def _find_unread(
        self, vgpus: int, device_ids: Ids | None, error: ClusterError
    ) -> Turn | Refusal:
        """The best that is left when the API server cannot be asked."""
        log.failing("pods unreadable", error=error)
        refused = refused_by_cluster(
            error,
            f"{self._nobody(vgpus)} as far as is known, and the API server cannot be asked for "
            f"more ({short_reason(error)}); delete the pod, so that it is created anew, once the "
            "API server answers; the agent's log on the node says more",
        )
        evidence = self._evidence(self._view.pods.now().pods.values(), device_ids)
        turn = choose_turn(evidence, vgpus, device_ids)
        if turn is None:
            found = choose_anyway(evidence, vgpus)
        elif turn.record is not None and turn.remaining is None:
            # an old answer is not given on old knowledge; one that never went out ends its bind
            found = None if turn.record.answered else Refusal(pod=turn.pod, error=refused)
        else:
            found = turn
        if found is None:
            raise refused from error
        return found

    def _nobody(self, vgpus: int) -> str:
        return f"no pod on node {self._view.node_name} is waiting for {vgpus} vGPU(s)"

    def _read_node(self, deadline_s: float) -> None:
        try:
            self._view.read_node(deadline_s=deadline_s)
        except ClusterError as error:
            log.failing("node unreadable", error=error)  # the pods alone may be enough
        else:
            log.recovered("node unreadable")

    def _know_node(self, deadline_s: float) -> None:
        """Read our Node once while its watch has not brought it: it carries the lock."""
        if self._view.own_node.now() is None:
            self._read_node(min(deadline_s, self._clock() + NODE_READ_S))

    def _evidence(self, pods: Iterable[Pod], device_ids: Ids | None) -> Evidence:
        with self._lock:
            uid, until_s = self._hints.get(device_ids or (), ("", 0.0))
            preferred = uid if self._clock() < until_s else ""
            last_served = self._last_served
        return Evidence(
            node_name=self._view.node_name,
            pods=tuple(pods),
            lock=self._view.lock(),
            records=self._grant_log.records(),
            failed=self._failed(),
            preferred=preferred,
            last_served=last_served,
            dialect=self._dialect,
        )

    def reread(self, uid: str, *, deadline_s: float) -> Pod | None:
        """A pod as the API server has it now; None when it is gone. Raises ClusterError."""
        pods = self._view.read_pods(deadline_s=deadline_s)
        pod = next((pod for pod in pods if pod.uid == uid), None)
        if pod is not None:
            self._view.saw_pod(pod)
        else:
            self._view.missed(uid)
        return pod

    def forgotten(self, available: Collection[str], vgpus: int) -> Ids | None:
        """Ids of the one running container that kubelet has lost from its books, see `choice`."""
        evidence = self._evidence(self._view.pods.now().pods.values(), None)
        return forgotten(evidence, available, vgpus)

    def prefer(self, device_ids: Ids, turn: Turn) -> None:
        """Remember that kubelet was told to ask for exactly these ids (sorted) for this turn."""
        with self._lock:
            self._hints[device_ids] = (turn.pod.uid, self._clock() + HINT_LIVES_S)
            self._hints.move_to_end(device_ids)
            while len(self._hints) > HINTS:
                self._hints.popitem(last=False)

    def served(self, turn: Turn, device_ids: Ids) -> None:
        """Remember who was served: kubelet goes on with the same pod."""
        with self._lock:
            self._hints.pop(device_ids, None)
            self._last_served = turn.pod.uid
