"""The node of real peers: kubelet 1.20.2, kube-apiserver 1.20.2, etcd."""

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

    kind = "the real kubelet 1.20"
    abilities = frozenset({SEES_STARTS, STOPS_KUBELET, LOSES_FILES, REBOOTS, STOPS_API})
    why_not: Mapping[str, str] = {}
    fails_pods_when_it_starts = False

    def __init__(self, node: PeerNode) -> None:
        self._node = node
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
