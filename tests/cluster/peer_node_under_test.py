"""The node of real peers: kubelet and kube-apiserver, 1.20.2 unless others are given, etcd."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from cluster.node_under_test import (
    LOSES_FILES,
    REBOOTS,
    SEES_STARTS,
    STOPS_API,
    STOPS_KUBELET,
    ContainerView,
    without_kubelets_own,
)
from peers.node import PeerNode


class PeerNodeUnderTest:
    """Implements NodeUnderTest."""

    abilities = frozenset({SEES_STARTS, STOPS_KUBELET, LOSES_FILES, REBOOTS, STOPS_API})
    why_not: Mapping[str, str] = {}

    def __init__(self, node: PeerNode) -> None:
        self._node = node
        self.kind = f"the real kubelet 1.{node.kubelet.minor}"
        self.fails_pods_when_it_starts = node.kubelet.minor >= 25  # 1.25.10, to be exact
        self.name = node.name
        self.kubelet_socket = node.kubelet.socket
        self.pod_resources_socket = node.kubelet.pod_resources
        self.kubelet_log: Path | None = node.kubelet.process.log
        self.agent_kubeconfig = node.plane.kubeconfig("agent")
        self.api = node.plane.admin

    def containers(self, pod_uid: str, name: str) -> Sequence[ContainerView]:
        return [
            without_kubelets_own(
                c.envs,
                [(m.container_path, m.host_path, m.read_only) for m in c.mounts],
                [(d.container_path, d.host_path, d.permissions) for d in c.devices],
                c.annotations,
            )
            for c in self._node.runtime.containers_of(pod_uid, name)
        ]

    def lose_containers(self) -> None:
        self._node.runtime.forget()

    def stop_kubelet(self) -> None:
        self._node.kubelet.stop()

    def start_kubelet(self) -> None:
        self._node.kubelet.start()

    def stop_api(self) -> None:
        self._node.plane.stop_apiserver()

    def start_api(self) -> None:
        self._node.plane.start_apiserver()
