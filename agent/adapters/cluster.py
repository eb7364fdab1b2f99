"""The Cluster port: our Node, our pods and Events, as paths and JSON of core v1."""

import contextlib
import json
import random
import time
from collections.abc import Callable, Iterator, Mapping
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

from agent.adapters.kube_answers import (
    JSON_PATCH,
    MERGE_PATCH,
    AnswerTooLong,
    ConflictAfterRetry,
    OutcomeUnknown,
    Request,
    decoded,
    error_of,
)
from agent.adapters.kube_pages import pages
from agent.adapters.kube_transport import KubeTransport
from agent.domain.asked import AmountNames
from agent.domain.pods import AMOUNTS, Node, Pod, decode_node, decode_pod
from agent.errors import ClusterError, ClusterGone, ClusterUnavailable
from agent.ports import ClusterEvent, Listed, NodeChange, PodChange, Stop

WATCH_S = (480.0, 960.0)  # a watch is renewed after 8 to 16 minutes
# An API server that sends bookmarks sends one each minute, and one may be lost. Without them nobody
# is at the connection's other end any more, even where a load balancer in between keeps it alive.
BOOKMARK_S = 120.0
EARLY = 0.9  # of its time: a watch that ends before was ended by somebody else's wish
MAX_MESSAGE_BYTES = 1024  # of an Event; the API server refuses longer ones
MAX_REASON_CHARS = 128
NODE_EVENTS_NAMESPACE = "default"  # where kubectl looks for the Events of a Node
EXPIRED = 410
COMPONENT = "vgpu-agent"

_TELLING = ("applied", "deleted")  # what it was about
_KINDS = {"ADDED": "applied", "MODIFIED": "applied", "DELETED": "deleted", "BOOKMARK": "bookmark"}


class KubeCluster:
    """Implements `agent.ports.Cluster` for one node.

    Nothing is imported, read or sent before the first call; `connect` does all but the sending.

    Args:
        transport: the way to the API server.
        node_name: our Node.
        resource_name: the count resource by which containers ask for vGPUs.
        decided_by: further resources by whose limits the scheduler decides about containers.
        amounts: resources by which containers ask for parts of a vGPU.
        watch_s: shortest and longest duration of one watch.
    """

    def __init__(
        self,
        transport: KubeTransport,
        *,
        node_name: str,
        resource_name: str = "nvidia.com/gpu",
        decided_by: tuple[str, ...] = (),
        amounts: AmountNames = AMOUNTS,
        watch_s: tuple[float, float] = WATCH_S,
        jitter: Callable[[], float] = random.random,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._node_name = node_name
        self._resource_name = resource_name
        self._decided_by = decided_by
        self._amounts = amounts
        self._transport = transport
        self._watch_s = watch_s
        self._jitter = jitter
        self._clock = clock
        self._long_list = False  # the last list was too long for one answer
        self._node_path = f"/api/v1/nodes/{quote(node_name, safe='')}"

    def connect(self) -> None:
        """Load the credentials now. Raises ConfigError with what to do when there are none."""
        self._transport.connect()

    # --- pods -----------------------------------------------------------------------------------

    def list_pods(self, *, cached: bool = False, deadline_s: float | None = None) -> Listed:
        """All pods with spec.nodeName = this node: one request, or pages of a long list.

        `cached` lets the API server answer from its memory, possibly a moment behind: that is what
        thousands of agents shall do when they start together. It knows no pages there.
        """

        def ask(more: Mapping[str, str]) -> dict[str, Any]:
            request = Request(
                verb="list",
                resource="pods",
                method="GET",
                path="/api/v1/pods",
                about=f"the pods of node {self._node_name}",
                query={"fieldSelector": f"spec.nodeName={self._node_name}"} | dict(more),
            )
            return self._transport.send(request, deadline_s=deadline_s)

        if not self._long_list:
            try:
                return self._listed(ask({"resourceVersion": "0"} if cached else {}))
            except AnswerTooLong:
                self._long_list = True
        listed = [self._listed(answer) for answer in pages(ask, clock=self._clock)]
        self._long_list = len(listed) > 1
        pods = tuple(pod for page in listed for pod in page.pods)
        return Listed(pods, listed[0].resource_version)

    def _listed(self, answer: Mapping[str, Any]) -> Listed:
        items, version = answer.get("items") or [], _version(answer)
        if not isinstance(items, list) or not version:
            raise ClusterUnavailable(
                "the answer to the list of pods is not a list; is there something else than an "
                "API server at this address?"
            )
        return Listed(tuple(self._pod(item) for item in items), version)

    def watch_pods(
        self, resource_version: str, *, stop: Stop, on_open: Callable[[], None] = lambda: None
    ) -> Iterator[PodChange]:
        """Follow those pods; see `agent.ports.Cluster`."""
        selector = f"spec.nodeName={self._node_name}"
        about = f"the pods of node {self._node_name}"
        request, lasts_s = self._watch_request("pods", selector, about, resource_version)
        for kind, item in self._watch(request, lasts_s, stop, on_open):
            pod = self._pod(item) if kind in _TELLING else None
            yield PodChange(kind, pod, _version(item))

    def patch_pod(
        self,
        pod: Pod,
        changes: Mapping[str, str | None],
        *,
        expected: Mapping[str, str],
        deadline_s: float | None = None,
    ) -> Pod:
        """Change annotations if nobody else did meanwhile; see `agent.ports.Cluster`."""
        path = f"/api/v1/namespaces/{quote(pod.namespace, safe='')}/pods/{quote(pod.name, safe='')}"
        about = f"the pod {pod.full_name}"
        if expected:
            body: Any = [_test("/metadata/uid", pod.uid)]
            body += [_test(_pointer(key), value) for key, value in expected.items()]
            body += [step for key, value in changes.items() for step in _set(key, value)]
            content_type = JSON_PATCH
        else:
            body, content_type = _merge(changes, uid=pod.uid), MERGE_PATCH
        request = _patch("pods", path, about, body, content_type)
        try:
            changed = self._pod(self._transport.send(request, deadline_s=deadline_s))
            if changed.uid != pod.uid:  # a proxy, a page of somebody else's: nothing is known
                raise OutcomeUnknown(
                    f"cannot patch {about}: what answers in the API server's place speaks of "
                    "something else; see which address the agent uses, and what is in between"
                )
            return changed
        except ConflictAfterRetry:
            # The try without an answer may have been carried out; then what we expected is gone
            # because of us.
            found = self._pod(self._get("pods", path, about, deadline_s))
            if found.uid != pod.uid or found.with_annotations(changes) != found:
                raise
            return found

    def evict_pod(self, pod: Pod) -> None:
        """Have a pod end as a drain does; see `agent.ports.Cluster`.

        API servers before 1.22 know evictions of v1beta1 only, later ones both, for now.
        """
        try:
            self._evict_pod(pod, "policy/v1")
        except ClusterError as error:
            if error.code != HTTPStatus.BAD_REQUEST:
                raise
            self._evict_pod(pod, "policy/v1beta1")

    def _evict_pod(self, pod: Pod, version: str) -> None:
        name, namespace = quote(pod.name, safe=""), quote(pod.namespace, safe="")
        request = Request(
            verb="create",
            resource="pods/eviction",
            method="POST",
            path=f"/api/v1/namespaces/{namespace}/pods/{name}/eviction",
            about=f"the eviction of pod {pod.full_name}",
            body={
                "apiVersion": version,
                "kind": "Eviction",
                "metadata": {"name": pod.name, "namespace": pod.namespace},
                "deleteOptions": {"preconditions": {"uid": pod.uid}},
            },
        )
        with contextlib.suppress(ClusterGone):
            self._transport.send(request)

    # --- our Node -------------------------------------------------------------------------------

    def get_node(self, *, deadline_s: float | None = None) -> Node:
        """Our Node object."""
        return decode_node(self._get("nodes", self._node_path, self._about_node, deadline_s))

    def watch_node(
        self, resource_version: str, *, stop: Stop, on_open: Callable[[], None] = lambda: None
    ) -> Iterator[NodeChange]:
        """Follow our Node object; an empty version starts with what it is now."""
        selector = f"metadata.name={self._node_name}"
        about = self._about_node
        request, lasts_s = self._watch_request("nodes", selector, about, resource_version)
        for kind, item in self._watch(request, lasts_s, stop, on_open):
            node = decode_node(item) if kind in _TELLING else None
            yield NodeChange(kind, node, _version(item))

    def patch_node(
        self, changes: Mapping[str, str | None], *, deadline_s: float | None = None
    ) -> Node:
        """Set (or with None remove) annotations of our Node; gives the Node as it is then."""
        body = _merge(changes)
        request = _patch("nodes", self._node_path, self._about_node, body, MERGE_PATCH)
        return decode_node(self._transport.send(request, deadline_s=deadline_s))

    def remove_node_annotation(
        self, key: str, *, expected: str, deadline_s: float | None = None
    ) -> Node:
        """Remove an annotation if it still has this value; see `agent.ports.Cluster`."""
        body = [_test(_pointer(key), expected), {"op": "remove", "path": _pointer(key)}]
        request = _patch("nodes", self._node_path, self._about_node, body, JSON_PATCH)
        try:
            return decode_node(self._transport.send(request, deadline_s=deadline_s))
        except ConflictAfterRetry:
            found = self.get_node(deadline_s=deadline_s)
            if key in found.annotations:
                raise
            return found

    @property
    def _about_node(self) -> str:
        return f"the Node {self._node_name}"

    # --- Events ---------------------------------------------------------------------------------

    def post_event(self, event: ClusterEvent) -> None:
        """Record an Event about a pod, or about our node."""
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        if event.pod is not None:
            namespace = event.pod.namespace
            involved = {"kind": "Pod", "namespace": namespace, "uid": event.pod.uid}
            involved["name"] = event.pod.name
        else:  # kubelet too puts the node's name where the uid belongs, and kubectl looks there
            namespace = NODE_EVENTS_NAMESPACE
            involved = {"kind": "Node", "name": self._node_name, "uid": self._node_name}
        message = event.message.encode()[:MAX_MESSAGE_BYTES].decode(errors="ignore")
        body = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"generateName": f"{involved['name'][:200]}.", "namespace": namespace},
            "involvedObject": {"apiVersion": "v1", **involved},
            "reason": event.reason[:MAX_REASON_CHARS],
            "message": message,
            "type": "Warning" if event.warning else "Normal",
            "source": {"component": COMPONENT, "host": self._node_name},
            "reportingComponent": COMPONENT,
            "reportingInstance": self._node_name,
            "firstTimestamp": stamp,
            "lastTimestamp": stamp,
            "count": 1,
        }
        self._transport.send(
            Request(
                verb="create",
                resource="events",
                method="POST",
                path=f"/api/v1/namespaces/{quote(namespace, safe='')}/events",
                about=f"an Event {event.reason}",
                body=body,
                repeatable=False,
            )
        )

    # --- shared ---------------------------------------------------------------------------------

    def _pod(self, item: Any) -> Pod:
        return decode_pod(
            item, resource=self._resource_name, also=self._decided_by, amounts=self._amounts
        )

    def _get(
        self, resource: str, path: str, about: str, deadline_s: float | None
    ) -> dict[str, Any]:
        request = Request(verb="get", resource=resource, method="GET", path=path, about=about)
        return self._transport.send(request, deadline_s=deadline_s)

    def _watch_request(
        self, resource: str, selector: str, about: str, resource_version: str
    ) -> tuple[Request, float]:
        """The request, and how many seconds the watch lasts."""
        shortest_s, longest_s = self._watch_s
        lasts_s = shortest_s + (longest_s - shortest_s) * self._jitter()
        query = {
            "watch": "true",
            "fieldSelector": selector,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(max(1, round(lasts_s))),
        }
        request = Request(
            verb="watch",
            resource=resource,
            method="GET",
            path=f"/api/v1/{resource}",
            about=about,
            query=query | ({"resourceVersion": resource_version} if resource_version else {}),
        )
        return request, lasts_s

    def _watch(
        self, request: Request, lasts_s: float, stop: Stop, on_open: Callable[[], None]
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        began_s, quiet_s = self._clock(), lasts_s
        lines = self._transport.lines(request, quiet_s=lambda: quiet_s, stop=stop, on_open=on_open)
        for line in lines:
            event = decoded(line, request)
            if event.get("type") == "BOOKMARK":
                quiet_s = min(lasts_s, BOOKMARK_S)
            item = event.get("object")
            if event.get("type") == "ERROR":
                code = item.get("code") if isinstance(item, dict) else None
                body = json.dumps(item).encode()
                raise error_of(request, code if isinstance(code, int) else EXPIRED, {}, body)
            kind = _KINDS.get(str(event.get("type")))
            if kind and isinstance(item, dict):
                yield kind, item
        if self._clock() - began_s < EARLY * lasts_s and not stop.stopping:
            yield "ended", {}


def _version(item: Mapping[str, Any]) -> str:
    metadata = item.get("metadata")
    version = metadata.get("resourceVersion") if isinstance(metadata, dict) else None
    return version if isinstance(version, str) else ""


def _patch(resource: str, path: str, about: str, body: Any, content_type: str) -> Request:
    return Request(
        verb="patch",
        resource=resource,
        method="PATCH",
        path=path,
        about=about,
        body=body,
        content_type=content_type,
    )


def _merge(changes: Mapping[str, str | None], **metadata: str) -> dict[str, Any]:
    return {"metadata": {"annotations": dict(changes), **metadata}}


def _pointer(key: str) -> str:
    return "/metadata/annotations/" + key.replace("~", "~0").replace("/", "~1")


def _test(path: str, value: str) -> dict[str, str]:
    return {"op": "test", "path": path, "value": value}


def _set(key: str, value: str | None) -> list[dict[str, str]]:
    """Give the steps that set an annotation, or remove it whether or not it is there."""
    set_it = {"op": "add", "path": _pointer(key), "value": value or ""}
    return [set_it] if value is not None else [set_it, {"op": "remove", "path": _pointer(key)}]
