# ruff: noqa: ARG002 - it has the arguments of its port, used or not
"""A cluster that nobody needs: where kubelet alone says what there is, or without an API server.

Nothing is read or watched. Events go to the log, or, where there are credentials, to the cluster.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import NoReturn

from agent import logs
from agent.domain.pods import Node, Pod
from agent.errors import ClusterUnavailable
from agent.ports import Cluster, ClusterEvent, Listed, NodeChange, PodChange, Stop

log = logs.get(__name__)

NO_API_SERVER = "the agent runs without an API server"


class NoCluster:
    """Implements `ports.Cluster`. Thread-safe."""

    def __init__(self, events: Cluster | None = None) -> None:
        """`events`: where Events (and evictions) go, if there is such a place."""
        self._events = events

    def post_event(self, event: ClusterEvent) -> None:
        """Hand it on, about the pod by its own uid; without a cluster it is a line in the log."""
        pod = _by_its_own_uid(event.pod) if event.pod else None
        if self._events is not None and (pod is None or pod.name):
            self._events.post_event(replace(event, pod=pod))
            return
        about = pod.full_name if pod else "node"
        say = log.warning if event.warning else log.info
        say("event", reason=event.reason, about=about, message=event.message)

    def evict_pod(self, pod: Pod) -> None:
        """Evict it, where there is a cluster that can. Raises ClusterError."""
        if self._events is None:
            _unavailable()
        self._events.evict_pod(_by_its_own_uid(pod))

    # --- what nobody asks for

    def list_pods(self, *, cached: bool = False, deadline_s: float | None = None) -> Listed:
        """Raises ClusterUnavailable."""
        _unavailable()

    def watch_pods(
        self, resource_version: str, *, stop: Stop, on_open: Callable[[], None] = lambda: None
    ) -> Iterator[PodChange]:
        """Raises ClusterUnavailable."""
        _unavailable()

    def get_node(self, *, deadline_s: float | None = None) -> Node:
        """Raises ClusterUnavailable."""
        _unavailable()

    def watch_node(
        self, resource_version: str, *, stop: Stop, on_open: Callable[[], None] = lambda: None
    ) -> Iterator[NodeChange]:
        """Raises ClusterUnavailable."""
        _unavailable()

    def patch_node(
        self, changes: Mapping[str, str | None], *, deadline_s: float | None = None
    ) -> Node:
        """Raises ClusterUnavailable."""
        _unavailable()

    def remove_node_annotation(
        self, key: str, *, expected: str, deadline_s: float | None = None
    ) -> Node:
        """Raises ClusterUnavailable."""
        _unavailable()

    def patch_pod(
        self,
        pod: Pod,
        changes: Mapping[str, str | None],
        *,
        expected: Mapping[str, str],
        deadline_s: float | None = None,
    ) -> Pod:
        """Raises ClusterUnavailable."""
        _unavailable()


def _unavailable() -> NoReturn:
    raise ClusterUnavailable(NO_API_SERVER)


def _by_its_own_uid(pod: Pod) -> Pod:
    return replace(pod, uid=pod.kubelet_uid) if pod.kubelet_uid else pod
