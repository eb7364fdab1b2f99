"""Loop: keep the picture of our own Node true, with one watch and no polling."""

import random
import time
from collections.abc import Callable

from agent import logs
from agent.domain.pods import Node
from agent.errors import ClusterDenied, ClusterError
from agent.ports import Cluster, NodeChange
from agent.services.node_view import NodeView
from agent.services.retries import Retries
from agent.supervisor import Lifeline

log = logs.get(__name__)

POLL_S = 15.0  # without permission to watch; half of the scheduler's patience with a handshake
POLL_PULSE_S = 30.0
SHORTEST_WATCH_S = 0.5
OLDER_STARTS = 2  # in a row, until an older Node is believed


class NodeWatch:
    """Loop: follow our Node. Each watch starts with what the Node is now, so none can be too old.

    That first state may come from the API server's memory and be older than what we know from our
    own writes; then it is passed over. If the next watch, minutes later, starts with an older one
    again, the cluster was restored from a backup, and it is believed.

    HAMi's own ClusterRole allows to read Nodes but not to watch them. With that one the Node is
    read every POLL_S, and a warning says what to allow.
    """

    name = "node-watch"

    def __init__(
        self,
        cluster: Cluster,
        view: NodeView,
        *,
        jitter: Callable[[], float] = random.random,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cluster = cluster
        self._view = view
        self._jitter = jitter
        self._retries = Retries(jitter)
        self._clock = clock
        self._older_starts = 0
        self._open = False  # whether the API server has begun to answer this turn's watch

    def run(self, life: Lifeline) -> None:
        while not life.stopping:
            pause_s = self.step_once(life)
            if pause_s:
                life.pause(pause_s)

    def step_once(self, life: Lifeline) -> float:
        """Follow until the watch ends; give the pause before the next turn."""
        began_s = self._clock()
        first, early, self._open = True, False, False
        try:
            for change in self._cluster.watch_node("", stop=life, on_open=self._follows):
                early = change.kind == "ended"
                self._apply(change, first=first)
                first = False
        except ClusterDenied as error:
            log.failing("node not followed", error=error)
            return self._poll(life)
        except ClusterError as error:
            log.failing("node not followed", error=error)
            lasted_s = self._clock() - began_s
            pause_s = self._retries.failed_s(error, lasted_s=lasted_s)
            lost = self._open and lasted_s >= SHORTEST_WATCH_S
            return max(pause_s, self._retries.lost_s()) if lost else pause_s
        if life.stopping:
            return 0.0
        if self._clock() - began_s >= SHORTEST_WATCH_S:
            return self._retries.lost_s() if early else 0.0
        return self._retries.failed_s()  # a watch that ends at once must not become a hot loop

    def _follows(self) -> None:
        self._open = True
        log.recovered("node not followed")

    def _poll(self, life: Lifeline) -> float:
        life.pulse(POLL_PULSE_S)
        try:
            self._view.saw_node(self._cluster.get_node())
        except ClusterError as error:
            log.failing("node not read", error=error)
            return self._retries.failed_s(error)
        log.recovered("node not read")
        return POLL_S * (0.9 + 0.2 * self._jitter())

    def _apply(self, change: NodeChange, *, first: bool) -> None:
        if change.kind != "ended":
            self._retries.succeeded()
        if change.kind == "deleted":
            log.warning("our node was deleted", node=self._view.node_name)
            self._view.own_node.publish(None)
        elif change.node is not None:
            if first:
                self._judge_start(change.node)
            self._view.saw_node(change.node)

    def _judge_start(self, node: Node) -> None:
        known = self._view.own_node.now()
        older = known is not None and _number(node) < _number(known)
        self._older_starts = self._older_starts + 1 if older else 0
        if self._older_starts >= OLDER_STARTS:
            log.warning("cluster went back in time", version=node.resource_version)
            self._older_starts = 0
            self._view.own_node.publish(None)


def _number(node: Node) -> int:
    return int(node.resource_version) if node.resource_version.isdecimal() else 0
