"""Any node of any cluster, given by the environment.

VGPU_TEST_KUBECONFIG      how to reach the API server, as an administrator
VGPU_TEST_KUBELET_DIR     kubelet's directory on this machine, with device-plugins/ in it

and, where the defaults do not fit or more cases are to run:

VGPU_TEST_AGENT_KUBECONFIG  the same as the agent; default: also as the administrator
VGPU_TEST_NODE            the node's name; not needed when the cluster has one node only
VGPU_TEST_IMAGE           an image with `true` and `sleep`; default busybox
VGPU_TEST_KUBELET_LOG     a file that is shown with a case that failed
VGPU_TEST_KUBELET_STOP, VGPU_TEST_KUBELET_START
VGPU_TEST_API_STOP, VGPU_TEST_API_START
VGPU_TEST_LOSE_CONTAINERS shell commands; the last one is run while kubelet is stopped
"""

import os
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from cluster.checkpoint import CHECKPOINT, given_to, read_assignments
from cluster.node_under_test import (
    LOSES_FILES,
    REBOOTS,
    RESOURCE,
    SEES_STARTS,
    STOPS_API,
    STOPS_KUBELET,
    ContainerView,
)
from kube_api import KubeApi
from waiting import eventually

NEEDED = ("VGPU_TEST_KUBECONFIG", "VGPU_TEST_KUBELET_DIR")
COMMANDS = {
    STOPS_KUBELET: ("VGPU_TEST_KUBELET_STOP", "VGPU_TEST_KUBELET_START"),
    STOPS_API: ("VGPU_TEST_API_STOP", "VGPU_TEST_API_START"),
    REBOOTS: ("VGPU_TEST_KUBELET_STOP", "VGPU_TEST_KUBELET_START", "VGPU_TEST_LOSE_CONTAINERS"),
}
OUR_PODS = "vgpu-"  # see GpuPods
COMMAND_S = 120


def missing(environ: Mapping[str, str] = os.environ) -> str:
    """Why there is no such node; empty when there is one."""
    for variable in NEEDED:
        if not environ.get(variable):
            return f"no cluster is given: {variable} is not set"
    return ""


class GivenNode:
    """Implements NodeUnderTest as far as a foreign cluster allows."""

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        self._environ = environ
        kubelet = Path(environ["VGPU_TEST_KUBELET_DIR"])
        administrator = Path(environ["VGPU_TEST_KUBECONFIG"])
        log = environ.get("VGPU_TEST_KUBELET_LOG")
        self.kubelet_log = Path(log) if log else None
        self.kubelet_socket = kubelet / "device-plugins" / "kubelet.sock"
        self.pod_resources_socket = kubelet / "pod-resources" / "kubelet.sock"
        self.agent_kubeconfig = Path(environ.get("VGPU_TEST_AGENT_KUBECONFIG") or administrator)
        self.api = KubeApi.from_kubeconfig(administrator)
        self.name = environ.get("VGPU_TEST_NODE") or self._only_node()
        self._views: dict[tuple[str, str], dict[str, ContainerView]] = {}
        version = self._status().get("nodeInfo", {}).get("kubeletVersion", "")
        self.kind = f"the given kubelet {version}".rstrip()
        self.fails_pods_when_it_starts = _minor(version) >= 25  # 1.25.10, to be exact
        self.why_not = self._what_is_missing()
        self.abilities = frozenset({LOSES_FILES, *COMMANDS} - set(self.why_not))
        free = f"{self.name} offers no {RESOURCE}, or stops to: its own device plugin must not run"
        eventually(lambda: not self._offered(), within_s=60, what=free)

    def containers(self, pod_uid: str, name: str) -> Sequence[ContainerView]:
        """Every start that was seen from here, with what kubelet's books said then."""
        seen = self._views.setdefault((pod_uid, name), {})
        for container_id in self._container_ids(pod_uid, name):
            if container_id not in seen:
                seen[container_id] = given_to(self._books(), pod_uid, name)
        return tuple(seen.values())

    def lose_containers(self) -> None:
        self._run("VGPU_TEST_LOSE_CONTAINERS")

    def stop_kubelet(self) -> None:
        self._run("VGPU_TEST_KUBELET_STOP")

    def start_kubelet(self) -> None:
        before = _identity(self.kubelet_socket)
        self._run("VGPU_TEST_KUBELET_START")
        eventually(lambda: _identity(self.kubelet_socket) not in (None, before), within_s=120)

    def stop_api(self) -> None:
        self._run("VGPU_TEST_API_STOP")
        eventually(lambda: not self.api.is_ready(), within_s=120)

    def start_api(self) -> None:
        self._run("VGPU_TEST_API_START")
        eventually(self.api.is_ready, within_s=120)

    def _run(self, variable: str) -> None:
        command = self._environ[variable]
        subprocess.run(command, shell=True, check=True, timeout=COMMAND_S)  # noqa: S602 - theirs

    def _what_is_missing(self) -> dict[str, str]:
        found = {SEES_STARTS: "kubelet's books have what plugins gave, and not the pod's own"}
        for ability, variables in COMMANDS.items():
            if unset := [name for name in variables if not self._environ.get(name)]:
                found[ability] = f"{' and '.join(unset)} not set"
        if strangers := self._pods_of_others_with_devices():
            found[LOSES_FILES] = f"they are needed by {', '.join(sorted(strangers))}"
        return found

    def _pods_of_others_with_devices(self) -> set[str]:
        if not self.kubelet_socket.with_name(CHECKPOINT).exists():
            return set()
        with_devices = {assignment.pod_uid for assignment in self._books()}
        return {
            f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
            for pod in self._pods()
            if pod["metadata"]["uid"] in with_devices
            and not pod["metadata"]["name"].startswith(OUR_PODS)
        }

    def _books(self) -> Any:
        return read_assignments(self.kubelet_socket.with_name(CHECKPOINT).read_bytes())

    def _pods(self) -> Any:
        return self.api.get("/api/v1/pods", fieldSelector=f"spec.nodeName={self.name}")["items"]

    def _container_ids(self, pod_uid: str, name: str) -> Iterator[str]:
        """Of the container's present run and of the one before, oldest first."""
        (pod,) = (pod for pod in self._pods() if pod["metadata"]["uid"] == pod_uid)
        for kind in ("initContainerStatuses", "containerStatuses"):
            for status in pod["status"].get(kind) or ():
                before = (status.get("lastState") or {}).get("terminated") or {}
                ids = (before.get("containerID"), status.get("containerID"))
                yield from (each for each in ids if each and status["name"] == name)

    def _status(self) -> Any:
        return self.api.get(f"/api/v1/nodes/{self.name}")["status"]

    def _offered(self) -> int:
        return int(self._status().get("allocatable", {}).get(RESOURCE, "0"))

    def _only_node(self) -> str:
        names = [node["metadata"]["name"] for node in self.api.get("/api/v1/nodes")["items"]]
        assert len(names) == 1, f"set VGPU_TEST_NODE to one of {', '.join(names)}"
        return str(names[0])


def _minor(version: str) -> int:
    """The 29 of v1.29.3-extra; 0 of what is no version."""
    found = re.match(r"v1\.([0-9]{1,3})", version)
    return int(found[1]) if found else 0


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_ctime_ns
