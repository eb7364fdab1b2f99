"""Any node of any cluster, given by the environment.

VGPU_TEST_KUBECONFIG  how to reach the API server, as an administrator and as the agent
VGPU_TEST_KUBELET_DIR kubelet's directory on this machine, with device-plugins/ in it
VGPU_TEST_NODE        the node's name; not needed when the cluster has one node only
VGPU_TEST_IMAGE       an image with `true` and `sleep`; default busybox
VGPU_TEST_KUBELET_STOP, VGPU_TEST_KUBELET_START
                      shell commands; without them the cases that restart kubelet are skipped
"""

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cluster.node_under_test import STOPS_KUBELET, ContainerView
from kube_api import KubeApi
from waiting import eventually


def missing(environ: Mapping[str, str] = os.environ) -> str:
    """Why there is no such node; empty when there is one."""
    for variable in ("VGPU_TEST_KUBECONFIG", "VGPU_TEST_KUBELET_DIR"):
        if not environ.get(variable):
            return f"no cluster is given: {variable} is not set"
    return ""


class GivenNode:
    """Implements NodeUnderTest as far as a foreign cluster allows."""

    kind = "given cluster"
    kubelet_log: Path | None = None

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        kubelet = Path(environ["VGPU_TEST_KUBELET_DIR"])
        self.kubelet_socket = kubelet / "device-plugins" / "kubelet.sock"
        self.pod_resources_socket = kubelet / "pod-resources" / "kubelet.sock"
        self.agent_kubeconfig = Path(environ["VGPU_TEST_KUBECONFIG"])
        self.api = KubeApi.from_kubeconfig(self.agent_kubeconfig)
        self.name = environ.get("VGPU_TEST_NODE") or self._only_node()
        self._stop = environ.get("VGPU_TEST_KUBELET_STOP", "")
        self._start = environ.get("VGPU_TEST_KUBELET_START", "")
        self.abilities = frozenset({STOPS_KUBELET} if self._stop and self._start else ())

    def containers(self, pod_uid: str, name: str) -> Sequence[ContainerView]:
        raise NotImplementedError

    def end_container(self, pod_uid: str, name: str, exit_code: int) -> None:
        raise NotImplementedError

    def lose_containers(self) -> None:
        raise NotImplementedError

    def stop_kubelet(self) -> None:
        subprocess.run(self._stop, shell=True, check=True)  # noqa: S602 - the tester's own command

    def start_kubelet(self) -> None:
        before = _identity(self.kubelet_socket)
        subprocess.run(self._start, shell=True, check=True)  # noqa: S602
        eventually(lambda: _identity(self.kubelet_socket) not in (None, before), within_s=120)

    def stop_api(self) -> None:
        raise NotImplementedError

    def start_api(self) -> None:
        raise NotImplementedError

    @property
    def api_server(self) -> Any:
        raise NotImplementedError

    def _only_node(self) -> str:
        names = [node["metadata"]["name"] for node in self.api.get("/api/v1/nodes")["items"]]
        assert len(names) == 1, f"set VGPU_TEST_NODE to one of {', '.join(names)}"
        return str(names[0])


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_ctime_ns
