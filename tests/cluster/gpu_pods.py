"""Pods that a HAMi scheduler has placed, on any API server; and what became of them."""

import itertools
import os
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from cluster.node_under_test import RESOURCE, NodeUnderTest
from kube_api import ApiFailure, KubeApi
from waiting import eventually

from agent.sim.api_client import ApiClient, ApiFailed
from agent.sim.scheduler import LOCK, NodeLocked, PlacedClaim, Scheduler

NAMESPACE = "default"
_PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
_numbers = itertools.count(1)
_run = uuid.uuid4().hex[:6]  # pods of an earlier run on a given cluster have other names


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """A container to ask for, with what the scheduler decides for it.

    asked: GPUs in its limits; None: as many as it has claims. limits: of other resources. env: the
    pod author's own.
    """

    name: str
    claims: Sequence[PlacedClaim] = ()
    asked: int | None = None
    limits: Mapping[str, str] | None = None
    env: Mapping[str, str] | None = None
    command: Sequence[str] = ("sleep", "3600")


@dataclass(frozen=True, slots=True)
class GpuPod:
    """A pod that was created."""

    name: str
    uid: str

    def __str__(self) -> str:
        return f"{NAMESPACE}/{self.name}"


class GpuPods:
    """Creates pods, places them as HAMi does, looks at them, and deletes them all in the end."""

    def __init__(self, node: NodeUnderTest, *, release: str = "2.9") -> None:
        self._node = node
        self._api: KubeApi = node.api
        token = node.api.headers.get("Authorization", "").removeprefix("Bearer ")
        client = ApiClient(node.api.url, token=token, tls=node.api.tls)
        self.scheduler = Scheduler(client, release=release)
        self._created: list[GpuPod] = []

    def create(
        self, *containers: Container, init: Sequence[Container] = (), restart: str = "Always"
    ) -> GpuPod:
        """Create a pod that nobody has placed yet."""
        name = f"vgpu-{_run}-{next(_numbers)}"
        spec = {
            "restartPolicy": restart,
            "schedulerName": "hami-scheduler",
            "terminationGracePeriodSeconds": 0,
            "enableServiceLinks": False,
            "automountServiceAccountToken": False,
            "initContainers": [_spec(c, memory=False) for c in init],
            "containers": [_spec(c) for c in containers],
        }
        body = {"metadata": {"name": name}, "spec": spec}
        created = self._api.request("POST", _PODS, body)
        pod = GpuPod(name, created["metadata"]["uid"])
        self._created.append(pod)
        return pod

    def place(self, pod: GpuPod, *containers: Container, init: Sequence[Container] = ()) -> None:
        """Do what the scheduler does: annotate, take the node's lock (waiting for it), bind."""
        self.place_unbound(pod, *containers, init=init)
        self.bind(pod)

    def place_unbound(
        self, pod: GpuPod, *containers: Container, init: Sequence[Container] = ()
    ) -> None:
        """Everything that the scheduler does before the binding, which `bind` then makes."""
        node, claims = self._node.name, [c.claims for c in containers]
        init_claims = [c.claims for c in init]
        self.scheduler.filter(NAMESPACE, pod.name, node, claims, init_claims=init_claims)
        if any(claims):  # a pod with GPUs in its init containers only is not locked for
            eventually(
                lambda: self._locked(pod), within_s=60, every_s=0.1, what="the node's lock is ours"
            )
        self.scheduler.start_bind(NAMESPACE, pod.name)

    def place_by_request(self, pod: GpuPod) -> None:
        """Let the scheduler choose the GPUs, by what the pod asks for and the node has to give."""

        def placed() -> bool:
            try:
                return self.scheduler.schedule_by_request(NAMESPACE, pod.name) == self._node.name
            except NodeLocked:
                return False
            except ApiFailed as failure:  # kubelet has written the node's status meanwhile
                if failure.code != HTTPStatus.CONFLICT:
                    raise
                return False

        eventually(placed, within_s=60, every_s=0.1, what=f"{pod} is placed")

    def _locked(self, pod: GpuPod) -> bool:
        try:
            self.scheduler.lock(self._node.name, NAMESPACE, pod.name)
        except NodeLocked:
            return False
        except ApiFailed as failure:  # kubelet has written the node's status meanwhile
            if failure.code != HTTPStatus.CONFLICT:
                raise
            return False
        return True

    def annotate(self, pod: GpuPod, annotations: Mapping[str, str]) -> None:
        """Write annotations, as anybody who may edit pods can."""
        self._api.merge_patch(
            f"{_PODS}/{pod.name}", {"metadata": {"annotations": dict(annotations)}}
        )

    def start(
        self, *containers: Container, init: Sequence[Container] = (), restart: str = "Always"
    ) -> GpuPod:
        """Create and place a pod."""
        pod = self.create(*containers, init=init, restart=restart)
        self.place(pod, *containers, init=init)
        return pod

    def bind(self, pod: GpuPod) -> None:
        """Only the binding: all that a scheduler does that knows nothing of shared GPUs."""
        self.scheduler.bind(NAMESPACE, pod.name, self._node.name)

    def read(self, pod: GpuPod) -> dict[str, Any]:
        """The pod as the API server has it."""
        return self._api.get(f"{_PODS}/{pod.name}")

    def annotations(self, pod: GpuPod) -> dict[str, str]:
        """Its annotations."""
        found: dict[str, str] = self.read(pod)["metadata"].get("annotations") or {}
        return found

    def status(self, pod: GpuPod) -> dict[str, Any]:
        """Its status."""
        found: dict[str, Any] = self.read(pod).get("status") or {}
        return found

    def wait_for_phase(self, pod: GpuPod, phase: str, *, within_s: float = 60) -> dict[str, Any]:
        """Wait until kubelet reports this phase; gives the status. Fails early on another end."""
        ends = {"Failed", "Succeeded"} - {phase}

        def reached() -> dict[str, Any] | None:
            status = self.status(pod)
            if status.get("phase") in ends:
                raise AssertionError(f"{pod} is {status} instead of {phase}")
            return status if status.get("phase") == phase else None

        found = eventually(reached, within_s=within_s, every_s=0.05, what=f"{pod} is {phase}")
        assert found is not None
        return found

    def delete(self, pod: GpuPod) -> None:
        """Delete a pod, now."""
        self._created.remove(pod)
        try:
            self._api.request("DELETE", f"{_PODS}/{pod.name}", query={"gracePeriodSeconds": "0"})
        except ApiFailure as failure:
            if failure.code != 404:
                raise

    def delete_all(self) -> None:
        """Delete what is left."""
        for pod in list(self._created):
            self.delete(pod)


class NodeView:
    """The Node object, as the scheduler and people see it."""

    def __init__(self, node: NodeUnderTest) -> None:
        self._api = node.api
        self._path = f"/api/v1/nodes/{node.name}"

    def annotations(self) -> dict[str, str]:
        """Its annotations."""
        found: dict[str, str] = self._api.get(self._path)["metadata"].get("annotations") or {}
        return found

    def annotate(self, **annotations: str | None) -> None:
        """Write annotations whose keys have / and - in them: use a dictionary with `**`."""
        self._api.merge_patch(self._path, {"metadata": {"annotations": annotations}})

    def event_reasons(self, about: str) -> set[str]:
        """Reasons of the Events on this node whose message has `about` in it."""
        events = self._api.get("/api/v1/namespaces/default/events")["items"]
        return {
            event["reason"]
            for event in events
            if event["involvedObject"].get("name") == self._path.rpartition("/")[2]
            and about in event.get("message", "")
        }

    def lock(self) -> str:
        """Who holds the node; empty: nobody."""
        return self.annotations().get(LOCK, "")

    def allocatable(self, resource: str = RESOURCE) -> int:
        """How many devices kubelet offers."""
        allocatable = self._api.get(self._path).get("status", {}).get("allocatable", {})
        return int(allocatable.get(resource, "0"))

    def capacity(self, resource: str = RESOURCE) -> int:
        """How many devices there are, healthy or not."""
        capacity = self._api.get(self._path).get("status", {}).get("capacity", {})
        return int(capacity.get(resource, "0"))

    def wait_for_allocatable(
        self, count: int, resource: str = RESOURCE, *, within_s: float = 60
    ) -> None:
        """Wait until kubelet offers exactly this many."""
        eventually(
            lambda: self.allocatable(resource) == count,
            within_s=within_s,
            every_s=0.05,
            what=f"allocatable is {count}",
        )

    def wait_for_lock(self, held: bool) -> None:
        """Wait until the node is locked, or free."""
        eventually(lambda: bool(self.lock()) == held, within_s=60, what=f"the lock is {held}")

    def wait_for(self, key: str, accept: Callable[[str | None], bool]) -> None:
        """Wait until an annotation is as it should be."""
        eventually(lambda: accept(self.annotations().get(key)), within_s=60, what=key)


def _spec(container: Container, *, memory: bool = True) -> dict[str, Any]:
    """A container of the pod's spec.

    memory: name memory and cores, which the webhook and the scheduler know and no device plugin.
    Kubelets skip such resources in app containers only, and refuse a pod whose init container has
    them (Kubernetes 1.20, lifecycle/predicate.go).
    """
    asked = len(container.claims) if container.asked is None else container.asked
    limits = dict(container.limits or {})
    if asked:
        limits[RESOURCE] = str(asked)
    if container.claims and memory:
        limits["nvidia.com/gpumem"] = str(container.claims[0].memory_mib)
        limits["nvidia.com/gpucores"] = str(container.claims[0].core_percent)
    env = [{"name": name, "value": value} for name, value in (container.env or {}).items()]
    return {
        "name": container.name,
        "image": os.environ.get("VGPU_TEST_IMAGE", "busybox"),
        "imagePullPolicy": "IfNotPresent",
        "command": list(container.command),
        "env": env,
        "resources": {"limits": limits},
    }
