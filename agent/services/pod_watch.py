"""Loop: keep the picture of this node's pods true, with one watch and no polling."""

import random
import time
from collections.abc import Callable

from agent import logs
from agent.errors import ClusterError, ClusterGone
from agent.ports import Cluster, Listed, PodChange
from agent.services.node_view import NodeView, merged
from agent.services.published import PodTable
from agent.services.retries import Retries
from agent.supervisor import Lifeline

log = logs.get(__name__)

LIST_PULSE_S = 30.0
SHORTEST_WATCH_S = 0.5
# So long without even a bookmark, which every API server since 1.17 sends each minute and at the
# end: our version is from the future, because the cluster was restored from a backup.
DEAF_S = 90.0
# A version that cannot be resumed from, again and again, is from a past the API server has lost.
LIST_ANEW_AFTER = 3
# But these say nothing about the version: thousands would list because a server was away or busy.
AWAY_OR_BUSY = (0, 401, 403, 429, 503)


class PodWatch:
    """Loop: list once, then follow; list again only when the API server says so.

    The first list may come from the API server's memory: thousands of agents that start together
    must not each make it read all pods from disk. Later lists are made because something was
    wrong, and are consistent ones.
    """

    name = "pod-watch"

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
        self._retries = Retries(jitter)
        self._clock = clock
        self._version = ""  # where to resume; empty: list first
        self._last_version = ""  # the youngest ever seen
        self._listed_before = False
        self._open = False  # whether the API server has begun to answer this turn's watch
        self._refusals = 0  # in a row, of answers that may be due to our version

    def run(self, life: Lifeline) -> None:
        while not life.stopping:
            pause_s = self.step_once(life)
            if pause_s:
                life.pause(pause_s)

    def step_once(self, life: Lifeline) -> float:
        """List if need be, follow until the watch ends; give the pause before the next turn."""
        began_s, heard, early = self._clock(), False, False
        self._open = False
        try:
            if not self._version:
                life.pulse(LIST_PULSE_S)
                self._list()
            for change in self._cluster.watch_pods(self._version, stop=life, on_open=self._follows):
                early = change.kind == "ended"
                heard = heard or not early
                self._apply(change)
        except ClusterError as error:
            return self._failed_s(error, lasted_s=self._clock() - began_s)
        lasted_s = self._clock() - began_s
        if lasted_s >= DEAF_S and not heard:
            self._version = ""
        if life.stopping:
            return 0.0
        if lasted_s >= SHORTEST_WATCH_S:
            return self._retries.lost_s() if early else 0.0
        return self._retries.failed_s()  # a watch that ends at once must not become a hot loop

    def _failed_s(self, error: ClusterError, *, lasted_s: float) -> float:
        """Take note of what went wrong; give the pause."""
        pause_s = self._retries.failed_s(error, lasted_s=lasted_s)
        if self._open and lasted_s >= SHORTEST_WATCH_S:
            pause_s = max(pause_s, self._retries.lost_s())
        self._refusals += error.code not in AWAY_OR_BUSY
        if isinstance(error, ClusterGone) or self._refusals >= LIST_ANEW_AFTER:
            self._version = ""
        log.failing("pods not followed", error=error)
        return pause_s

    def _follows(self) -> None:
        """The API server follows with us again; on a quiet node no change says so for minutes."""
        self._open = True
        log.recovered("pods not followed")

    def _list(self) -> None:
        cached = not self._listed_before
        listed = self._cluster.list_pods(cached=cached)
        if not cached and _number(listed.resource_version) < _number(self._last_version):
            # Not stale, and yet older than what we saw: the cluster was restored from a backup.
            log.warning("cluster went back in time", version=listed.resource_version)
            self._view.pods.publish(_table(PodTable(), listed))
        else:
            self._view.pods.update(lambda table: _table(table, listed))
        self._listed_before, self._refusals = True, 0
        self._version = self._last_version = listed.resource_version

    def _apply(self, change: PodChange) -> None:
        pod = change.pod
        if change.kind == "deleted" and pod is not None:
            self._view.pods.update(lambda table: table.without(pod.uid))
        elif change.kind == "applied" and pod is not None:
            self._view.saw_pod(pod)
        if change.resource_version:
            self._version = self._last_version = change.resource_version
        if change.kind != "ended":
            self._refusals = 0
            self._retries.succeeded()


def _table(known: PodTable, listed: Listed) -> PodTable:
    return PodTable({pod.uid: pod for pod in merged(known, listed)}, synced=True)


def _number(version: str) -> int:
    return int(version) if version.isdecimal() else 0
