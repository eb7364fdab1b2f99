"""Kubelet's PodResources API: which container holds which device, by kubelet's own books."""

from pathlib import Path

import grpc

from agent.errors import KubeletUnavailable
from agent.ports import KubeletAssignment
from agent.wire import podresources_pb2 as pr
from agent.wire import rpc

TIMEOUT_S = 5.0
MAX_RECEIVE_BYTES = 16 * 1024 * 1024  # all pods of the node; kubelet sends without a limit


class PodResourcesClient:
    """Asks kubelet (`ports.PodResources`). A fresh connection each time: it is asked rarely."""

    def __init__(self, socket: Path, *, timeout_s: float = TIMEOUT_S) -> None:
        self._socket = socket
        self._timeout_s = timeout_s

    def assignments(self) -> tuple[KubeletAssignment, ...]:
        """See `ports.PodResources.assignments`. Ids of one container and resource are joined."""
        channel = rpc.unix_channel(self._socket, max_receive_bytes=MAX_RECEIVE_BYTES)
        try:
            answer = rpc.LIST_POD_RESOURCES.client(channel)(
                pr.ListPodResourcesRequest(), timeout=self._timeout_s
            )
        except grpc.RpcError as error:
            raise KubeletUnavailable(
                f"kubelet does not tell its assignments on {self._socket} "
                f"({error.code().name}: {error.details()})"
            ) from error
        finally:
            channel.close()
        return tuple(assignment for pod in answer.pod_resources for assignment in _of_pod(pod))


def _of_pod(pod: pr.PodResources) -> list[KubeletAssignment]:
    """Newer kubelets send one entry per device, older ones one per NUMA node."""
    found = []
    for container in pod.containers:
        by_resource: dict[str, set[str]] = {}
        for devices in container.devices:
            by_resource.setdefault(devices.resource_name, set()).update(devices.device_ids)
        found += [
            KubeletAssignment(pod.namespace, pod.name, container.name, resource, tuple(sorted(ids)))
            for resource, ids in by_resource.items()
        ]
    return found
