"""Loop: keep the picture of our own Node true, with one watch and no polling."""

import random
import time
from collections.abc import Callable

from agent import logs
from agent.errors import ClusterDenied, ClusterError, ClusterGone
from agent.ports import Cluster, NodeChange
from agent.services.node_view import NodeView
from agent.services.retries import Retries
from agent.supervisor import Lifeline

log = logs.get(__name__)

POLL_S = 15.0  # without permission to watch; half of the scheduler's patience with a handshake
POLL_PULSE_S = 30.0
SHORTEST_WATCH_S = 0.5
START_ANEW_AFTER = 3


class NodeWatch:
    """Loop: follow our Node; a watch without a version starts with what the Node is now.

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
        self._version = ""

    def run(self, life: Lifeline) -> None:
        while not life.stopping:
            pause_s = self.step_once(life)
            if pause_s:
                life.pause(pause_s)

    def step_once(self, life: Lifeline) -> float:
        """Follow until the watch ends; give the pause before the next turn."""
        began_s = self._clock()
        try:
            for change in self._cluster.watch_node(self._version, stop=life):
                if self._went_back(change.resource_version):
                    log.warning("cluster went back in time", version=change.resource_version)
                    self._version = ""  # it was restored from a backup: what we know is void
                    self._view.own_node.publish(None)
                    break
                self._apply(change)
        except ClusterDenied as error:
            log.failing("node not followed", error=error)
            return self._poll(life)
        except ClusterError as error:
            pause_s = self._retries.failed_s(error, lasted_s=self._clock() - began_s)
            if isinstance(error, ClusterGone) or self._retries.in_a_row >= START_ANEW_AFTER:
                self._version = ""
            log.failing("node not followed", error=error)
            return pause_s
        log.recovered("node not followed")
        if self._clock() - began_s >= SHORTEST_WATCH_S or life.stopping:
            return 0.0
        return self._retries.failed_s()  # a watch that ends at once must not become a hot loop

    def _poll(self, life: Lifeline) -> float:
        life.pulse(POLL_PULSE_S)
        try:
            self._view.saw_node(self._cluster.get_node())
        except ClusterError as error:
            log.failing("node not read", error=error)
            return self._retries.failed_s(error)
        log.recovered("node not read")
        return POLL_S * (0.9 + 0.2 * self._jitter())

    def _went_back(self, version: str) -> bool:
        known = self._version
        return version.isdecimal() and known.isdecimal() and int(version) < int(known)

    def _apply(self, change: NodeChange) -> None:
        if change.kind == "deleted":
            log.warning("our node was deleted", node=self._view.node_name)
            self._view.own_node.publish(None)
        elif change.node is not None:
            self._view.saw_node(change.node)
        if change.resource_version:
            self._version = change.resource_version
        self._retries.succeeded()
