"""The node of stand-ins: what `vgpu-agent demo` runs on, here with kubelet's other half.

`agent.sim.kubelet` decides on pods but watches no API server; the loop below does that part:
bound pods are admitted in the order they come, their status is written, deleted ones are removed,
and a container whose command is `sleep` ends when it has slept, and is started again.
"""

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any

from cluster.node_under_test import (
    LOSES_FILES,
    REBOOTS,
    SEES_STARTS,
    STOPS_API,
    STOPS_KUBELET,
    ContainerView,
    without_kubelets_own,
)
from kube_api import KubeApi

from agent.sim.apiserver import ApiError, ApiServer
from agent.sim.kubelet import ContainerGrant, ContainerSpec, NodeStatus, PodSpec, StandInKubelet

NODE = "stand-in-node-1"
_TOKEN = "agent-token"  # noqa: S105 - of a server that lives for one test run


class StandInNode:
    """Implements NodeUnderTest; made by `running_stand_in`."""

    abilities = frozenset({SEES_STARTS, STOPS_KUBELET, LOSES_FILES, STOPS_API})
    why_not: Mapping[str, str] = {REBOOTS: "its containers are records, and are not lost"}
    fails_pods_when_it_starts = False
    kubelet_log: Path | None = None

    def __init__(self, state: Path, behaviour: str) -> None:
        self.kind = f"the stand-in of kubelet {behaviour}"
        self.name = NODE
        self._server = ApiServer(tokens=[_TOKEN]).start()
        self._server.objects.create("nodes", {"metadata": {"name": NODE}})
        self._kubelet = StandInKubelet(
            state / "device-plugins",
            state / "pod-resources",
            behaviour=behaviour,
            on_node_status=self._write_node_status,
        )
        self.kubelet_socket = self._kubelet.socket
        self.pod_resources_socket = state / "pod-resources" / "kubelet.sock"
        self.agent_kubeconfig = self._server.write_kubeconfig(state / "kubeconfig", token=_TOKEN)
        self.api = KubeApi.from_kubeconfig(self.agent_kubeconfig)
        self._started: dict[tuple[str, str], list[ContainerView]] = {}
        self._sleeps: dict[tuple[str, str], tuple[float, float]] = {}  # until when, how long
        self._admitted: set[str] = set()
        self._kubelet_runs = threading.Event()
        self._ended = threading.Event()
        self._pods = threading.Thread(target=self._follow_pods, name="stand-in-pods", daemon=True)

    def containers(self, pod_uid: str, name: str) -> Sequence[ContainerView]:
        return tuple(self._started.get((pod_uid, name), ()))

    def lose_containers(self) -> None:
        raise NotImplementedError

    def stop_kubelet(self) -> None:
        self._kubelet_runs.clear()
        self._kubelet.stop()

    def start_kubelet(self) -> None:
        self._kubelet.start()
        self._kubelet_runs.set()

    def stop_api(self) -> None:
        self._server.stop()

    def start_api(self) -> None:
        self._server.start()

    def start(self) -> None:
        """Start kubelet and the loop beside it."""
        self.start_kubelet()
        self._pods.start()

    def close(self) -> None:
        """End everything."""
        self._ended.set()
        self._pods.join(10)
        self._kubelet.stop()
        self._server.stop()

    def _write_node_status(self, status: NodeStatus) -> bool:
        counts = {
            "capacity": {resource: str(count) for resource, count in status.capacity.items()},
            "allocatable": {resource: str(count) for resource, count in status.allocatable.items()},
        }
        self._write_status("nodes", NODE, "", counts)
        return True  # into its objects, which are there though nobody may ask for them

    def _follow_pods(self) -> None:
        while not self._ended.wait(0.02):
            if not self._kubelet_runs.is_set():
                continue
            pods, _ = self._server.objects.list("pods")
            bound = [pod for pod in pods if pod["spec"].get("nodeName") == NODE]
            present = {pod["metadata"]["uid"] for pod in bound}
            for uid in self._admitted - present:
                self._kubelet.remove(uid)
                self._admitted.discard(uid)
            for pod in bound:
                if pod["metadata"]["uid"] not in self._admitted:
                    self._admitted.add(pod["metadata"]["uid"])
                    self._admit(pod)
            self._start_again_what_has_ended()

    def _start_again_what_has_ended(self) -> None:
        for (uid, name), (until_s, lasts_s) in list(self._sleeps.items()):
            if uid not in self._admitted:
                del self._sleeps[uid, name]
            elif time.monotonic() >= until_s:
                self._sleeps[uid, name] = (time.monotonic() + lasts_s, lasts_s)
                self._start_container(uid, name, self._kubelet.restart_container(uid, name))

    def _admit(self, pod: dict[str, Any]) -> None:
        metadata, spec = pod["metadata"], pod["spec"]
        result = self._kubelet.admit(
            PodSpec(
                uid=metadata["uid"],
                namespace=metadata["namespace"],
                name=metadata["name"],
                containers=[_container(c) for c in spec["containers"]],
                init_containers=[_container(c) for c in spec.get("initContainers", [])],
            )
        )
        status: dict[str, Any] = {"phase": "Running"}
        if not result.ok:
            status = {"phase": "Failed", "reason": result.reason, "message": result.message}
        for container in (*spec.get("initContainers", []), *spec["containers"]):
            if result.ok:
                grant = result.containers.get(container["name"], ContainerGrant())
                self._start_container(metadata["uid"], container["name"], grant)
        for container in spec["containers"] if result.ok else ():
            command, *arguments = container.get("command") or [""]
            if command == "sleep":
                lasts_s = float(arguments[0])
                key = (metadata["uid"], container["name"])
                self._sleeps[key] = (time.monotonic() + lasts_s, lasts_s)
        self._write_status("pods", metadata["name"], metadata["namespace"], status)

    def _write_status(
        self, resource: str, name: str, namespace: str, status: dict[str, Any]
    ) -> None:
        def change(item: dict[str, Any]) -> dict[str, Any]:
            return item | {"status": item.get("status", {}) | status}

        try:
            self._server.objects.update(resource, name, namespace, change, subresource="status")
        except ApiError as error:
            if error.code != HTTPStatus.NOT_FOUND:  # deleted meanwhile
                raise

    def _start_container(self, pod_uid: str, name: str, grant: ContainerGrant) -> None:
        view = without_kubelets_own(
            grant.cri_env,
            [(m.container_path, m.host_path, m.read_only) for m in grant.mounts],
            [(d.container_path, d.host_path, d.permissions) for d in grant.devices],
            grant.annotations,
        )
        self._started.setdefault((pod_uid, name), []).append(view)


def _container(container: dict[str, Any]) -> ContainerSpec:
    limits = (container.get("resources") or {}).get("limits") or {}
    return ContainerSpec(
        name=container["name"],
        resources={resource: int(count) for resource, count in limits.items()},
        env={entry["name"]: entry.get("value", "") for entry in container.get("env", [])},
        sidecar=container.get("restartPolicy") == "Always",
    )


@contextmanager
def running_stand_in(state: Path, behaviour: str) -> Iterator[StandInNode]:
    """Start the stand-ins, and end them afterwards."""
    node = StandInNode(state, behaviour)
    try:
        node.start()
        yield node
    finally:
        node.close()
