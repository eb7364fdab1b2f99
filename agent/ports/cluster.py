"""The API server, as the services need it."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from agent.domain.pods import Node, Pod


@dataclass(frozen=True, slots=True)
class Listed:
    """Pods of this node and the resource version they are current at."""

    pods: tuple[Pod, ...]
    resource_version: str


@dataclass(frozen=True, slots=True)
class PodChange:
    """One watch event. kind: "applied" (added or modified), "deleted", "bookmark", "ended".

    "ended" comes last, without a pod, when the server ended the watch long before its time: it, or
    the way to it, goes away, and takes the watches of many nodes with it.
    """

    kind: str
    pod: Pod | None
    resource_version: str


@dataclass(frozen=True, slots=True)
class NodeChange:
    """One watch event of our own Node. kind as in PodChange."""

    kind: str
    node: Node | None
    resource_version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterEvent:
    """A Kubernetes Event: what an operator should see in `kubectl describe`."""

    reason: str  # CamelCase, e.g. "GpuUnhealthy"
    message: str
    warning: bool = True
    pod: Pod | None = None  # None: about our node


class Cluster(Protocol):
    """The API server, as seen by one node: our Node, the pods bound to us, Events."""

    def list_pods(self, *, cached: bool = False, deadline_s: float | None = None) -> Listed:
        """All pods with spec.nodeName = this node: one request.

        `cached` allows an answer from the API server's memory, which may be a moment behind.
        """

    def watch_pods(
        self, resource_version: str, *, stop: "Stop", on_open: Callable[[], None] = lambda: None
    ) -> Iterator[PodChange]:
        """Follow those pods from a resource version until the server or `stop` ends the watch.

        `on_open` is called once the API server has accepted it; changes may be long in coming.
        Raises ClusterGone when the version is too old (410), ClusterUnavailable on a broken
        connection, a time-out, 429 or 5xx.
        """

    def get_node(self, *, deadline_s: float | None = None) -> Node:
        """Our Node object."""

    def watch_node(
        self, resource_version: str, *, stop: "Stop", on_open: Callable[[], None] = lambda: None
    ) -> Iterator[NodeChange]:
        """Follow our Node object; the rest as in watch_pods. An empty version starts with it."""

    def patch_node(
        self, changes: Mapping[str, str | None], *, deadline_s: float | None = None
    ) -> Node:
        """Set (or with None remove) annotations of our Node; gives the Node as it is then."""

    def remove_node_annotation(
        self, key: str, *, expected: str, deadline_s: float | None = None
    ) -> Node:
        """Remove an annotation if it still has this value, atomically, without reading first.

        Raises ClusterConflict when it has another value or is gone.
        """

    def patch_pod(
        self,
        pod: Pod,
        changes: Mapping[str, str | None],
        *,
        expected: Mapping[str, str],
        deadline_s: float | None = None,
    ) -> Pod:
        """Set (or with None remove) annotations of a pod, if nobody else did meanwhile.

        It must still be the same pod (uid) and the `expected` annotations must still have these
        values: tested and changed in one request. Gives the pod as it is then.

        Raises ClusterConflict when something changed, ClusterGone when the pod is gone.
        """

    def evict_pod(self, pod: Pod) -> None:
        """Have a pod end as a drain does: its disruption budget may object (ClusterUnavailable).

        One that is gone is no error. Raises ClusterConflict when another pod has its name.
        """

    def post_event(self, event: ClusterEvent) -> None:
        """Record an Event. Best effort: callers log a failure and go on."""


class Stop(Protocol):
    """How a blocking call learns that the agent stops (implemented by supervisor.Lifeline)."""

    @property
    def stopping(self) -> bool: ...

    def on_stop(self, callback: Callable[[], None]) -> None: ...

    def pulse(self, within_s: float) -> None: ...
